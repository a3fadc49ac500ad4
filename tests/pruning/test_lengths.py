"""What the caller sees of lengths: the prompt comes back whole, limits count it, the cache is short."""

import pytest
import torch
from transformers import GenerationConfig, TextStreamer

from tests.support import tiny_llava as tiny
from vlprune import Script, attach

KEEP = 9
GREEDY = {"do_sample": False}


@pytest.fixture
def attached(model, processor):
    with attach(model, Script(keep=KEEP), processor=processor):
        yield model


def test_the_prompt_comes_back_as_it_was(attached, ragged):
    out = attached.generate(**ragged, max_new_tokens=4, **GREEDY)
    length = ragged["input_ids"].shape[1]
    assert out.shape == (3, length + 4)
    assert torch.equal(out[:, :length], ragged["input_ids"])


@pytest.mark.parametrize("how", ["argument", "config", "model"])
def test_max_length_counts_the_whole_prompt(attached, single, how):
    limit = single["input_ids"].shape[1] + 5
    free = attached.generate(**single, max_new_tokens=5, **GREEDY)
    if how == "argument":
        out = attached.generate(**single, max_length=limit, **GREEDY)
    elif how == "config":
        config = GenerationConfig(max_length=limit, do_sample=False)
        out = attached.generate(**single, generation_config=config)
        assert config.max_length == limit
    else:
        attached.generation_config.max_length = limit
        out = attached.generate(**single, **GREEDY)
        attached.generation_config.max_length = None
    assert torch.equal(out, free)


def test_max_length_within_the_prompt_is_refused_as_before(attached, single):
    with pytest.raises(ValueError, match="max_length"):
        attached.generate(**single, max_length=single["input_ids"].shape[1], **GREEDY)


@pytest.mark.parametrize("how", ["argument", "config"])
def test_min_length_counts_the_whole_prompt(attached, single, how):
    """End of text is forbidden for four tokens, then forced by a processor that always wants it."""
    end = attached.generation_config.eos_token_id
    wants = [
        lambda ids, scores: torch.full_like(scores, -1e4).index_fill(1, torch.tensor([end], device=ids.device), 1e4)
    ]
    length = single["input_ids"].shape[1]
    limits = {"min_length": length + 4, "max_length": length + 9}
    options = limits if how == "argument" else {"generation_config": GenerationConfig(**limits, eos_token_id=end)}
    order = []

    class Wish:
        def __call__(self, ids, scores):
            order.append(ids.shape[1])
            return scores

    plain = attached.generate(**single, max_new_tokens=9, logits_processor=[*wants, Wish()], **GREEDY)
    assert plain.shape[1] == length + 1
    bias = {(end,): 1e3}
    out = attached.generate(**single, sequence_bias=bias, **options, **({} if how == "config" else GREEDY))
    assert out.shape[1] == length + 5
    assert int(out[0, -1]) == end
    assert end not in out[0, length:-1].tolist()


def test_new_token_limits_are_left_alone(attached, single):
    out = attached.generate(**single, max_new_tokens=3, max_length=5, **GREEDY)
    assert out.shape[1] == single["input_ids"].shape[1] + 3


def test_positional_arguments(attached, single):
    ids, rest = single["input_ids"], {k: v for k, v in single.items() if k != "input_ids"}
    named = attached.generate(**single, max_new_tokens=4, **GREEDY)
    config = GenerationConfig(max_new_tokens=4, do_sample=False)
    assert torch.equal(attached.generate(ids, config, **rest), named)
    assert torch.equal(attached.generate(inputs=ids, generation_config=config, **rest), named)


@pytest.mark.parametrize("name", ["single", "ragged", "mixed"])
def test_the_cache_holds_the_short_prompt(request, attached, name):
    batch = request.getfixturevalue(name)
    out = attached.generate(**batch, max_new_tokens=5, return_dict_in_generate=True, **GREEDY)
    images = (batch["input_ids"] == tiny.IMAGE).sum(1) // tiny.TOKENS
    longest = int((batch["attention_mask"].sum(1) - images * (tiny.TOKENS - KEEP)).max())
    assert out.past_key_values.get_seq_length() == longest + 4
    assert out.past_key_values.layers[0].keys.shape[-2] == longest + 4


def test_dictionary_output(attached, ragged):
    plain = attached.generate(**ragged, max_new_tokens=4, **GREEDY)
    out = attached.generate(
        **ragged,
        max_new_tokens=4,
        return_dict_in_generate=True,
        output_scores=True,
        output_hidden_states=True,
        **GREEDY,
    )
    assert torch.equal(out.sequences, plain)
    assert len(out.scores) == 4
    scores = attached.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    assert scores.shape == (3, 4)


def test_streamers_see_the_whole_prompt(attached, processor, single, capsys):
    puts = []

    class Streamer(TextStreamer):
        def put(self, value):
            puts.append(value)
            super().put(value)

    out = attached.generate(
        **single, max_new_tokens=4, streamer=Streamer(processor.tokenizer, skip_prompt=True), **GREEDY
    )
    assert torch.equal(puts[0], single["input_ids"].cpu())
    assert [int(value) for value in puts[1:]] == out[0, -4:].tolist()
    assert capsys.readouterr().out.split() == processor.decode(out[0, -4:]).split()


def test_padding_that_all_rows_share_stays(attached, single):
    padded = {
        "input_ids": torch.nn.functional.pad(single["input_ids"], (3, 0)),
        "attention_mask": torch.nn.functional.pad(single["attention_mask"], (3, 0)),
        "pixel_values": single["pixel_values"],
    }
    options = {"max_new_tokens": 4, "return_dict_in_generate": True, **GREEDY}
    bare, out = attached.generate(**single, **options), attached.generate(**padded, **options)
    assert out.past_key_values.get_seq_length() == bare.past_key_values.get_seq_length() + 3
    assert torch.equal(out.sequences[:, 3:], bare.sequences)

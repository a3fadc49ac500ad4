"""A short prompt is read by the device while `generate` gets ready on the host; answers are those without."""

from contextlib import nullcontext

import pytest
import torch

from tests.support import tiny_llava as tiny
from tests.support.tape import capture_on_tape
from vlprune import Script, attach
from vlprune.cuda_graphs.capture import Capturing
from vlprune.cuda_graphs.decoder_graphs import MAX_MISSES, DecoderGraphs
from vlprune.measure import Clock
from vlprune.pruning.generation_settings import longest_text

OPTIONS = {"do_sample": False, "max_new_tokens": 4, "return_dict_in_generate": True, "output_logits": True}
METHOD = Script(keep=5, relevance="none")


@pytest.fixture(autouse=True)
def _on_tape(device, monkeypatch):
    if device.type != "cuda":
        monkeypatch.setattr(Capturing, "capture", lambda self: None if self.failure else capture_on_tape)


@pytest.fixture
def reads(monkeypatch):
    """What happens to prompts, in order: "ahead", and "here" where the decoder reads one when it is called."""
    found = []
    ahead, padding = DecoderGraphs.read_ahead, DecoderGraphs._store_padding

    def read_ahead(self, embeds):
        before = len(found)
        ahead(self, embeds)
        found[before:] = ["ahead"] * (self._ahead is not None)

    monkeypatch.setattr(DecoderGraphs, "read_ahead", read_ahead)
    monkeypatch.setattr(DecoderGraphs, "_store_padding", lambda *args: found.append("here") or padding(*args))
    return found


def alike(left, right):
    assert left.sequences.tolist() == right.sequences.tolist()
    torch.testing.assert_close(torch.stack(left.logits), torch.stack(right.logits), atol=1e-4, rtol=1e-4)


def other(processor, device):
    return tiny.inputs(processor, ["is the big red cat there ?"], [1], device, seed=7)


def test_from_the_second_call_on(model, processor, single, device, reads):
    calls = [single, single, other(processor, device), single]
    with attach(model, METHOD, cache_bytes=0):
        without = [model.generate(**inputs, **OPTIONS) for inputs in calls]
    with attach(model, METHOD, cache_bytes=0, cuda_graphs=True):
        for inputs, expected in zip(calls, without, strict=True):
            alike(model.generate(**inputs, **OPTIONS), expected)
    assert reads == ["here", "ahead", "ahead", "ahead"]


def test_other_lengths_of_the_answer(model, single, reads):
    """Another length may need another cache, whose graph is captured when it is first asked for."""
    told = [{"max_new_tokens": 4}, {"max_new_tokens": 300}, {"max_new_tokens": 300}, {"max_new_tokens": 3}]
    told += [{"max_length": single["input_ids"].shape[1] + 3}]
    options = {**OPTIONS, "eos_token_id": 2}
    del options["max_new_tokens"]
    with attach(model, METHOD, cache_bytes=0):
        without = [model.generate(**single, **options, **more) for more in told]
    with attach(model, METHOD, cache_bytes=0, cuda_graphs=True):
        for more, expected in zip(told, without, strict=True):
            alike(model.generate(**single, **options, **more), expected)
    assert reads == ["here", "here", "ahead", "ahead", "ahead"]


@pytest.mark.parametrize(
    "more",
    [{"num_beams": 2}, {"num_return_sequences": 2, "do_sample": True}, {"prompt_lookup_num_tokens": 2}],
    ids=["beams", "copies", "lookup"],
)
@pytest.mark.filterwarnings("ignore:.*without CUDA graphs")
def test_calls_of_another_kind_between(model, single, reads, more):
    with attach(model, METHOD, cache_bytes=0):
        without = model.generate(**single, **OPTIONS)
    with attach(model, METHOD, cache_bytes=0, cuda_graphs=True):
        for _ in range(2):
            alike(model.generate(**single, **OPTIONS), without)
        model.generate(**single, **{**OPTIONS, **more})
        alike(model.generate(**single, **OPTIONS), without)


def test_padded_rows_and_a_second_turn_are_read_when_asked_for(model, single, ragged, reads):
    with attach(model, METHOD, cache_bytes=0):
        without = model.generate(**ragged, **OPTIONS)
    with attach(model, METHOD, cache_bytes=0, cuda_graphs=True):
        for _ in range(2):
            alike(model.generate(**ragged, **OPTIONS), without)
    assert reads == ["here", "here"]


def test_a_prompt_that_nobody_asks_for(model, single, reads):
    """It leaves nothing behind, not even a NaN."""
    with attach(model, METHOD, cache_bytes=0):
        without = model.generate(**single, **OPTIONS)
    with attach(model, METHOD, cache_bytes=0, cuda_graphs=True) as pruner:
        model.generate(**single, **OPTIONS)
        graphs = pruner.cuda_graphs
        (held,) = graphs._decoder_graphs.values()
        asked = graphs.read_ahead
        length = pruner.last.after + single["input_ids"].shape[1] - pruner.last.before
        nan = torch.full((1, length, model.config.text_config.hidden_size), float("nan"), device=model.device)
        asked(nan, length + 4)
        assert held._ahead is not None
        plain = type(model).generate
        text = {name: single[name][:, -3:] for name in ("input_ids", "attention_mask")}
        assert plain(model, **text, max_new_tokens=2).shape[1] == 5  # a call that goes past our own generate
        alike(model.generate(**single, **OPTIONS), without)
        assert held._ahead is None
    assert reads[:2] == ["here", "ahead"]


def test_calls_that_fail_between(model, single, reads):
    def stop(*_):
        raise RuntimeError("no more")

    with attach(model, METHOD, cache_bytes=0, cuda_graphs=True):
        for _ in range(2 * MAX_MISSES):
            model.generate(**single, **OPTIONS)
            with pytest.raises(RuntimeError, match="no more"):
                model.generate(**single, **OPTIONS, logits_processor=[stop])
    assert reads == ["here"] + ["ahead"] * (4 * MAX_MISSES - 1)


def test_weights_that_moved(model, single, reads, device):
    """They are looked at while the device reads: it reads the old ones, which are still there, in vain."""
    with attach(model, METHOD, cache_bytes=0, cuda_graphs=True) as pruner:
        model.generate(**single, **OPTIONS)
        layer = model.model.language_model.layers[1].mlp
        old = layer.down_proj.weight.data_ptr()
        layer.down_proj.weight = torch.nn.Parameter(-layer.down_proj.weight.detach().clone())
        if device.type == "cuda":
            torch.cuda.empty_cache()
        assert old in [weight.data_ptr() for weight in pruner.cuda_graphs._held_weights]
        found = model.generate(**single, **OPTIONS)
    assert reads == ["here", "ahead", "here"]
    with attach(model, METHOD, cache_bytes=0):
        alike(model.generate(**single, **OPTIONS), found)


def test_a_model_that_changes_the_embeddings(model, single, reads):
    """What it hands to its decoder is not what was read; it is read again, and nothing ahead any more."""
    decoder = model.get_decoder()
    scaled = lambda module, args, kwargs: (args, {**kwargs, "inputs_embeds": 2 * kwargs["inputs_embeds"]})  # noqa: E731
    handle = decoder.register_forward_pre_hook(scaled, with_kwargs=True)
    with attach(model, METHOD, cache_bytes=0):
        without = model.generate(**single, **OPTIONS)
    with attach(model, METHOD, cache_bytes=0, cuda_graphs=True):
        for _ in range(MAX_MISSES + 2):
            alike(model.generate(**single, **OPTIONS), without)
    handle.remove()
    assert reads == ["here", *["ahead", "here"] * MAX_MISSES, "here"]


def test_a_model_that_counts_from_one(model, single, reads):
    """As PaliGemma does; such prompts are read when they are asked for."""
    decoder = model.get_decoder()

    def count(module, args, kwargs):
        if kwargs.get("position_ids") is not None:
            return args, {**kwargs, "position_ids": kwargs["position_ids"] + 1}
        return None

    handle = decoder.register_forward_pre_hook(count, with_kwargs=True)
    with attach(model, METHOD, cache_bytes=0):
        without = model.generate(**single, **OPTIONS)
    with attach(model, METHOD, cache_bytes=0, cuda_graphs=True):
        for _ in range(2):
            alike(model.generate(**single, **OPTIONS), without)
    handle.remove()
    assert reads == ["here", "here"]


def test_a_clock_times_the_prefill_by_itself(model, single, reads):
    with attach(model, METHOD, cache_bytes=0, cuda_graphs=True) as pruner:
        for clocked in (False, False, True, False):
            with Clock(model, pruner) if clocked else nullcontext():
                model.generate(**single, **OPTIONS)
    assert reads == ["here", "ahead", "here", "ahead"]


def test_longest_text(model):
    assert longest_text(model, {"max_new_tokens": 5}, 10) == 15
    assert longest_text(model, {"max_length": 30}, 10) == 30
    assert longest_text(model, {"max_new_tokens": 5, "max_length": 30}, 10) == 15
    model.generation_config.max_length = None
    assert longest_text(model, {}, 10) is None

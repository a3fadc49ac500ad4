"""Several turns with one kept cache: what an earlier turn kept stays kept, and only new images are chosen anew."""

import copy

import pytest
import torch
from transformers import DynamicCache

from tests.support import llava_reference as reference
from tests.support import tiny_llava as tiny
from vlprune import Script, attach

STEPS, KEEP = 6, 9
OPTIONS = {"do_sample": False, "max_new_tokens": STEPS, "return_dict_in_generate": True}


def tokens(processor, text, device, images=0):
    """Token ids (1, l) of a further user turn, with whole images."""
    text = "USER : " + "<image> " * tiny.TOKENS * images + text + " ASSISTANT :"
    return torch.tensor([processor.tokenizer(text, add_special_tokens=False)["input_ids"]], device=device)


def longer(first, out, more):
    """The next turn's prompt: all that was said so far, then `more` in every row."""
    rows = out.sequences.shape[0]
    ids = torch.cat([out.sequences, more.expand(rows, -1)], dim=1)
    mask = torch.cat([first["attention_mask"], torch.ones_like(ids[:, first["attention_mask"].shape[1] :])], dim=1)
    return {"input_ids": ids, "attention_mask": mask}


def expect(model, batch, kept, original, choose=None):
    """The reference's answers with the images' kept tokens given, in order; `choose(row ids)` goes on after them."""
    kept = iter(kept)
    found = []
    for ids, pixels in reference.rows(batch):
        later = choose(ids) if choose is not None else None
        chooser = lambda image, later=later: one if (one := next(kept, None)) is not None else later(image)  # noqa: E731
        found.append(reference.decode(model, *reference.prompt(model, ids, pixels, chooser), STEPS, original))
    return reference.padded(found, STEPS)


@pytest.fixture(params=["renumbered", "original"])
def positions(request):
    return request.param


@pytest.mark.parametrize("pixels", ["again", "not again"])
@pytest.mark.parametrize("name", ["single", "ragged", "mixed"])
def test_a_second_question(request, model, processor, positions, pixels, name):
    first = request.getfixturevalue(name)
    method = Script(keep=KEEP, fusion="supplement")  # by which this random model says no placeholder of its own
    with attach(model, method, processor=processor, positions=positions) as pruner:
        out = model.generate(**first, **OPTIONS)
        kept = [record.kept.tolist() for record in pruner.records]
        second = longer(first, out, tokens(processor, "how many dogs are in the image ?", model.device))
        given = {"pixel_values": first["pixel_values"]} if pixels == "again" else {}
        after = model.generate(**second, **given, past_key_values=out.past_key_values, **OPTIONS)
        assert [record.kept.tolist() for record in pruner.records] == kept
        third = longer(second, after, tokens(processor, "is it red ?", model.device))
        last = model.generate(**third, **given, past_key_values=after.past_key_values, **OPTIONS)
    for batch, answer in ((second, after), (third, last)):
        whole = {**batch, "pixel_values": first["pixel_values"]}
        expected = expect(model, whole, kept, positions == "original")
        torch.testing.assert_close(reference.new_tokens(answer, batch, STEPS), expected)


@pytest.mark.parametrize("pixels", ["all", "new"])
def test_a_new_image_in_the_second_turn(model, processor, single, positions, pixels):
    new = torch.randn(1, 3, tiny.SIZE, tiny.SIZE, device=model.device)
    both = torch.cat([single["pixel_values"], new])
    with attach(model, Script(keep=KEEP), processor=processor, positions=positions) as pruner:
        out = model.generate(**single, **OPTIONS)
        (kept,) = [record.kept.tolist() for record in pruner.records]
        second = longer(single, out, tokens(processor, "is the second image red ?", model.device, images=1))
        given = both if pixels == "all" else new
        after = model.generate(**second, pixel_values=given, past_key_values=out.past_key_values, **OPTIONS)
        assert [(record.row, record.image) for record in pruner.records] == [(0, 0), (0, 1)]
        assert pruner.records[0].kept.tolist() == kept
        assert pruner.records[1].query == "is the second image red ?"
    expected = expect(
        model,
        {**second, "pixel_values": both},
        [kept],
        positions == "original",
        lambda ids: reference.script(model, reference.question(ids), KEEP),
    )
    torch.testing.assert_close(reference.new_tokens(after, second, STEPS), expected)


@pytest.mark.parametrize("keep", [9, 3])
def test_new_images_for_some_rows_of_a_batch(model, processor, ragged, keep):
    """Rows lose different numbers of tokens in the middle of the prompt, after what was generated."""
    new = torch.randn(1, 3, tiny.SIZE, tiny.SIZE, device=model.device)
    with attach(model, Script(keep=keep), processor=processor) as pruner:
        out = model.generate(**ragged, **OPTIONS)
        kept = [record.kept.tolist() for record in pruner.records]
        shown = tokens(processor, "which one ?", model.device, images=1)
        plain = tokens(processor, "which one ?", model.device)
        blank = torch.zeros(1, shown.shape[1] - plain.shape[1], dtype=torch.long, device=model.device)
        more = torch.cat([shown, torch.cat([blank, plain], 1), torch.cat([blank, plain], 1)])
        second = longer(ragged, out, torch.zeros_like(shown[:, :0]))
        second = {
            "input_ids": torch.cat([second["input_ids"], more], 1),
            "attention_mask": torch.cat([second["attention_mask"], (more != 0).long()], 1),
        }
        after = model.generate(**second, pixel_values=new, past_key_values=out.past_key_values, **OPTIONS)
    pictures = ragged["pixel_values"]
    whole = {**second, "pixel_values": torch.cat([pictures[:1], new, pictures[1:]])}
    ids = next(reference.rows(whole))[0]
    fresh = [record.kept.tolist() for record in pruner.records if (record.row, record.image) == (0, 1)]
    (alone,) = fresh
    states = reference.encode(model, new)[0][1]
    assert alone == reference.script(model, reference.question(ids), keep)(states)
    expected = expect(model, whole, [kept[0], alone, *kept[1:]], False)
    torch.testing.assert_close(reference.new_tokens(after, second, STEPS), expected)


def test_only_the_new_tokens_with_the_whole_mask(model, processor, ragged, positions):
    with attach(model, Script(keep=KEEP), processor=processor, positions=positions):
        out = model.generate(**ragged, **OPTIONS)
        second = longer(ragged, out, tokens(processor, "how many dogs ?", model.device))
        again = copy.deepcopy(out.past_key_values)
        whole = model.generate(**second, past_key_values=out.past_key_values, **OPTIONS)
        new = {**second, "input_ids": second["input_ids"][:, out.sequences.shape[1] - 1 :]}
        part = model.generate(**new, past_key_values=again, **OPTIONS)
    assert torch.equal(part.sequences[:, : new["input_ids"].shape[1]], new["input_ids"])
    assert torch.equal(part.sequences[:, -STEPS:], whole.sequences[:, -STEPS:])


def test_a_cache_that_the_caller_made_and_copies(model, processor, single):
    """One prefix, two continuations: the copy knows what it holds."""
    cache = DynamicCache(config=model.config.get_text_config())
    with attach(model, Script(keep=KEEP), processor=processor) as pruner:
        out = model.generate(**single, past_key_values=cache, do_sample=False, max_new_tokens=STEPS)
        kept = [record.kept.tolist() for record in pruner.records]
        for text in ("is it red ?", "where is the dog ?"):
            more = tokens(processor, text, model.device)
            ids = torch.cat([out, more], dim=1)
            batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            answer = model.generate(**batch, past_key_values=copy.deepcopy(cache), **OPTIONS)
            expected = expect(model, {**batch, "pixel_values": single["pixel_values"]}, kept, False)
            torch.testing.assert_close(reference.new_tokens(answer, batch, STEPS), expected)


def test_a_text_turn_before_the_first_image(model, device, processor):
    first = tiny.inputs(processor, ["tell me about the cat"], [0], device)
    first.pop("pixel_values", None)
    new = torch.randn(1, 3, tiny.SIZE, tiny.SIZE, device=device)
    with attach(model, Script(keep=KEEP), processor=processor):
        out = model.generate(**first, **OPTIONS)
        second = longer(first, out, tokens(processor, "is it red ?", device, images=1))
        after = model.generate(**second, pixel_values=new, past_key_values=out.past_key_values, **OPTIONS)
    expected = reference.answers(model, {**second, "pixel_values": new}, KEEP, STEPS)
    torch.testing.assert_close(reference.new_tokens(after, second, STEPS), reference.padded(expected, STEPS))


def test_a_cache_cut_back_to_before_the_question(model, processor, single):
    """Another question about the same image, from the part of the cache that both share."""
    ids = single["input_ids"]
    text = int((ids == tiny.IMAGE).nonzero()[-1, 1]) + 1
    with attach(model, Script(keep=KEEP), processor=processor) as pruner:
        out = model.generate(**single, **OPTIONS)
        kept = [record.kept.tolist() for record in pruner.records]
        cache = out.past_key_values
        cache.crop(-(cache.get_seq_length() - (text - tiny.TOKENS + KEEP)))
        tail = processor.tokenizer("is it a dog ? ASSISTANT :", add_special_tokens=False)["input_ids"]
        other = torch.cat([ids[:, :text], torch.tensor([tail], device=ids.device)], dim=1)
        batch = {"input_ids": other, "attention_mask": torch.ones_like(other)}
        answer = model.generate(**batch, past_key_values=cache, **OPTIONS)
    expected = expect(model, {**batch, "pixel_values": single["pixel_values"]}, kept, False)
    torch.testing.assert_close(reference.new_tokens(answer, batch, STEPS), expected)


def test_a_cache_of_another_prompt_is_refused(model, processor, single):
    with attach(model, Script(keep=KEEP), processor=processor):
        out = model.generate(**single, **OPTIONS)
        ids = out.sequences.flip(1)
        with pytest.raises(ValueError, match="another prompt"):
            model.generate(input_ids=ids, past_key_values=out.past_key_values, **OPTIONS)


def test_keep_all_turns_are_the_plain_model(model, processor, ragged):
    def talk():
        out = model.generate(**ragged, **OPTIONS)
        second = longer(ragged, out, tokens(processor, "how many dogs ?", model.device))
        return model.generate(**second, past_key_values=out.past_key_values, output_logits=True, **OPTIONS)

    plain = talk()
    with attach(model, Script(keep=1.0), processor=processor):
        out = talk()
    assert torch.equal(out.sequences, plain.sequences)
    assert all(torch.equal(a, b) for a, b in zip(out.logits, plain.logits))

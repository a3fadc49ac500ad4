"""Direct calls of the model: logits, loss, gradients, and decoding by hand."""

import pytest
import torch

from tests.support import llava_reference as reference
from tests.support import tiny_llava as tiny
from vlprune import Script, attach

KEEP = 9


def pruned_rows(model, batch, labels=None):
    """Per row, by the reference: logits (S, V) and the columns they belong to, one row at a time."""
    table = []
    for ids, pixels in reference.rows(batch):
        chooser = reference.script(model, reference.question(ids), KEEP)
        vectors, places = reference.prompt(model, ids, pixels, chooser)
        with torch.no_grad():
            states = model.model.language_model(inputs_embeds=vectors[None], use_cache=False).last_hidden_state[0]
            table.append((model.lm_head(states), places))
    return table


@pytest.mark.parametrize("name", ["single", "ragged", "mixed"])
@pytest.mark.parametrize("positions", ["renumbered", "original"])
@pytest.mark.parametrize("mask", [True, False])
def test_keep_all_is_the_plain_model(request, model, processor, name, positions, mask):
    batch = dict(request.getfixturevalue(name))
    if not mask:
        batch.pop("attention_mask")
    labels = batch["input_ids"].masked_fill(batch["input_ids"] == tiny.IMAGE, -100)  # padding is left in, as given
    plain = model(**batch, labels=labels)
    with attach(model, Script(keep=1.0), processor=processor, positions=positions):
        out = model(**batch, labels=labels)
    assert torch.equal(out.logits, plain.logits)
    assert torch.equal(out.loss, plain.loss)


@pytest.mark.parametrize("name", ["single", "ragged", "mixed"])
def test_logits_equal_the_reference(request, model, processor, name):
    batch = request.getfixturevalue(name)
    with attach(model, Script(keep=KEEP), processor=processor), torch.no_grad():
        logits = model(**batch).logits
    for row, (expected, _) in zip(logits, pruned_rows(model, batch)):
        torch.testing.assert_close(row[-len(expected) :], expected, atol=2e-4, rtol=2e-4)


def test_original_positions(model, processor, single):
    ids, pixels = next(reference.rows(single))
    vectors, places = reference.prompt(model, ids, pixels, reference.script(model, reference.question(ids), KEEP))
    with torch.no_grad():
        ones = torch.ones(1, len(vectors), dtype=torch.long, device=model.device)
        states = model.model.language_model(
            inputs_embeds=vectors[None], position_ids=places[None], attention_mask=ones, use_cache=False
        ).last_hidden_state
        expected = model.lm_head(states)
        for mask in ({}, {"attention_mask": single["attention_mask"]}):
            batch = {"input_ids": single["input_ids"], "pixel_values": single["pixel_values"], **mask}
            with attach(model, Script(keep=KEEP), processor=processor, positions="original"):
                original = model(**batch, use_cache=False).logits
            with attach(model, Script(keep=KEEP), processor=processor, positions="renumbered"):
                renumbered = model(**batch, use_cache=False).logits
            torch.testing.assert_close(original, expected, atol=2e-4, rtol=2e-4)
            assert not torch.allclose(original, renumbered, atol=1e-2)


@pytest.mark.parametrize("positions", ["renumbered", "original"])
def test_given_position_ids(model, processor, ragged, positions):
    """Positions that count real tokens give what the library's own numbering gives: attention is relative."""
    places = (ragged["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with attach(model, Script(keep=KEEP), processor=processor, positions=positions), torch.no_grad():
        own, given = model(**ragged).logits, model(**ragged, position_ids=places).logits
        told = model.generate(**ragged, position_ids=places, max_new_tokens=4, do_sample=False)
        free = model.generate(**ragged, max_new_tokens=4, do_sample=False)
    torch.testing.assert_close(own[:, -5:], given[:, -5:], atol=2e-4, rtol=2e-4)
    assert torch.equal(told, free)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("images", ["are targets", "are no targets"])
def test_labels(model, processor, ragged, side, images):
    batch = dict(ragged)
    if side == "right":  # as in training
        for name in ("input_ids", "attention_mask"):
            rows = [row[mask.bool()] for row, mask in zip(ragged[name], ragged["attention_mask"])]
            batch[name] = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
    ids = batch["input_ids"]
    mask = batch["attention_mask"]
    outside = (mask == 0) | (mask.cumsum(1) == 1)  # nothing predicts a row's first token
    hidden = images == "are no targets"
    outside |= (ids == tiny.IMAGE) & hidden
    labels = ids.masked_fill(outside, -100)
    with attach(model, Script(keep=KEEP), processor=processor):
        out = model(**batch, labels=labels)
    losses = []
    for (logits, places), (real, _) in zip(pruned_rows(model, batch), reference.rows(batch)):
        target = torch.tensor(real, device=ids.device)[places]
        target = target.masked_fill((target == tiny.IMAGE) & hidden, -100)
        losses.append(torch.nn.functional.cross_entropy(logits[:-1], target[1:], reduction="none")[target[1:] != -100])
    torch.testing.assert_close(out.loss, torch.cat(losses).mean(), atol=1e-4, rtol=1e-4)
    rows = pruned_rows(model, batch)
    for row, (expected, _) in zip(out.logits, rows):
        mine = row[: len(expected)] if side == "right" else row[-len(expected) :]
        torch.testing.assert_close(mine, expected, atol=2e-4, rtol=2e-4)


def test_gradients_reach_the_tower(model, processor, single):
    labels = single["input_ids"].masked_fill(single["input_ids"] == tiny.IMAGE, -100)
    with attach(model, Script(keep=KEEP), processor=processor):
        model.train()
        model(**single, labels=labels).loss.backward()
        model.eval()
    for module in (model.model.vision_tower.embeddings.patch_embedding, model.model.multi_modal_projector.linear_1):
        assert module.weight.grad is not None
        assert float(module.weight.grad.abs().sum()) > 0


def test_a_failed_call_does_not_mark_the_next_ones_cache(model, device, processor, single):
    text = tiny.inputs(processor, ["is it a dog ?"], [0], device)
    text.pop("pixel_values", None)
    token = text["input_ids"][:, -1:]
    plain = model(input_ids=token, past_key_values=model(**text).past_key_values).logits
    with attach(model, Script(keep=KEEP), processor=processor, positions="original"):
        handle = model.lm_head.register_forward_pre_hook(lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            model(**single)
        handle.remove()
        again = model(input_ids=token, past_key_values=model(**text).past_key_values).logits
    assert torch.equal(again, plain)


def test_positional_arguments(model, processor, single):
    with attach(model, Script(keep=KEEP), processor=processor), torch.no_grad():
        named = model(**single).logits
        assert torch.equal(model(single["input_ids"], single["pixel_values"]).logits, named)


@pytest.mark.parametrize("name", ["single", "ragged", "mixed"])
@pytest.mark.parametrize("positions", ["renumbered", "original"])
@pytest.mark.parametrize("told", ["mask", "mask and positions"])
def test_decoding_by_hand(request, model, processor, name, positions, told):
    """The loop that people write: a mask that grows from the whole prompt, and the cache from the output."""
    batch = request.getfixturevalue(name)
    expected = reference.answers(model, batch, KEEP, 5, positions == "original")
    mask, found = batch["attention_mask"], []
    with attach(model, Script(keep=KEEP), processor=processor, positions=positions) as pruner, torch.no_grad():
        out = model(**batch, use_cache=True)
        for _ in range(5):
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            found.append(token)
            mask = torch.cat([mask, torch.ones_like(token)], dim=1)
            more = {"position_ids": torch.full_like(token, mask.shape[1] - 1)} if "positions" in told else {}
            out = model(input_ids=token, attention_mask=mask, past_key_values=out.past_key_values, **more)
        assert len(pruner.records) == len(batch["pixel_values"])
    assert torch.equal(torch.cat(found, 1).cpu(), reference.padded(expected, 5))


def test_decoding_by_hand_without_a_mask(model, device, processor):
    """Rows of equal length that lose different numbers of tokens: the fillers must stay hidden."""
    texts = ["what color is the cat ?", " ".join(["cat"] * (tiny.TOKENS + 6))]
    batch = tiny.inputs(processor, texts, [1, 0], device)
    assert bool(batch["attention_mask"].all())
    expected = reference.answers(model, batch, KEEP, 4)
    batch.pop("attention_mask")
    found = []
    with attach(model, Script(keep=KEEP), processor=processor), torch.no_grad():
        out = model(**batch, use_cache=True)
        for _ in range(4):
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            found.append(token)
            out = model(input_ids=token, past_key_values=out.past_key_values)
    assert torch.equal(torch.cat(found, 1).cpu(), reference.padded(expected, 4))


@pytest.mark.parametrize("told", ["mask", "nothing"])
@pytest.mark.parametrize("positions", ["renumbered", "original"])
def test_a_new_image_by_hand(model, processor, single, positions, told):
    """A second direct call that brings an image, with the first one's cache."""
    tail = "ASSISTANT : red USER : " + "<image> " * tiny.TOKENS + "is it red ? ASSISTANT :"
    more = torch.tensor([processor.tokenizer(tail, add_special_tokens=False)["input_ids"]], device=model.device)
    new = torch.randn(1, 3, tiny.SIZE, tiny.SIZE, device=model.device)
    ids = torch.cat([single["input_ids"], more], dim=1)
    with attach(model, Script(keep=KEEP), processor=processor, positions=positions) as pruner, torch.no_grad():
        cache = model(**single, use_cache=True).past_key_values
        kept = [pruner.last.kept.tolist()]
        given = {"attention_mask": torch.ones_like(ids)} if told == "mask" else {}
        out = model(input_ids=more, pixel_values=new, past_key_values=cache, **given)
        kept.append(pruner.last.kept.tolist())
        assert pruner.last.query == "is it red ?"
    assert out.logits.shape[1] == more.shape[1] - tiny.TOKENS + KEEP
    images = torch.cat([single["pixel_values"], new])
    chosen = iter(kept)
    vectors, places = reference.prompt(model, ids[0].tolist(), images, lambda _: next(chosen))
    expected = reference.decode(model, vectors, places, 1, positions == "original")
    assert out.logits[0, -1].argmax().item() == expected[0]


def test_text_only_forward(model, device, processor):
    batch = tiny.inputs(processor, ["is it a dog ?"], [0], device)
    batch.pop("pixel_values", None)
    plain = model(**batch).logits
    with attach(model, Script(keep=KEEP), processor=processor) as pruner:
        assert torch.equal(model(**batch).logits, plain)
        assert pruner.records == []


def test_wrong_inputs(model, processor, single):
    with attach(model, Script(keep=KEEP), processor=processor):
        embeds = model.get_input_embeddings()(single["input_ids"])
        with pytest.raises(ValueError, match="input_ids must be passed"):
            model(inputs_embeds=embeds, pixel_values=single["pixel_values"])
        with pytest.raises(ValueError, match="input_ids must be passed"):
            model.generate(inputs_embeds=embeds, pixel_values=single["pixel_values"], max_new_tokens=2)
        with pytest.raises(ValueError, match="attention_mask must be 2-D"):
            model(**{**single, "attention_mask": single["attention_mask"][:, None, None]})
        with pytest.raises(ValueError, match="attention_mask has shape"):
            model(**{**single, "attention_mask": single["attention_mask"][:, 1:]})

"""Several turns with one kept cache, whose later layers hold fewer tokens than its first."""

import copy

import pytest
import torch

from tests.pruning.layers.test_generate import (
    GREEDY,
    KEEP,
    METHODS,
    STEPS,
    TOLD,
    close,
    known,
    new_tokens,
    on_llava,
    over_cases,
    over_methods,
)
from tests.support import layers_reference as reference
from tests.support.deep_models import machine
from tests.support.families.case import Sample
from vlprune import FastV, attach

IN_TURNS = {**GREEDY, **TOLD}


def second_turn(case, batch, out, said):
    """The second turn's prompt, without pixels."""
    ids = torch.cat([out.sequences, torch.tensor([sample.ids for sample in said])], dim=1)
    mask = torch.cat([batch["attention_mask"], torch.ones_like(ids[:, batch["input_ids"].shape[1] :])], dim=1)
    return {"input_ids": ids, "attention_mask": mask, **case.companions(ids)}


def after(case, model, row, answer, sample):
    """The reference's row after an answer and a further turn, which begins with the answer's last token."""
    row = reference.continued(case, model, row, answer[:-1])
    return reference.row(case, model, Sample(answer[-1:] + sample.ids, sample.visuals), before=row)


def expect(case, model, rows, slow):
    found = [reference.answer(case, model, machine(case), row, slow, STEPS) for row in rows]
    return torch.tensor([said for said, _, _ in found]), torch.stack([logits for _, logits, _ in found], dim=1), found


@over_cases
@over_methods
def test_a_second_question(case, model, name):
    samples = case.samples("ragged")
    batch = case.batch(samples)
    method, slow = METHODS[name]
    said = [case.sample(5, first=False) for _ in samples]
    found = []
    with attach(model, method) as pruner:
        for given in ({}, case.tensors(samples)):  # the pixels once, or in each turn
            out = model.generate(**batch, **IN_TURNS)
            kept = [record.kept.tolist() for record in pruner.records]
            second = second_turn(case, batch, out, said)
            found.append(model.generate(**second, **given, past_key_values=out.past_key_values, **IN_TURNS))
            assert [record.kept.tolist() for record in pruner.records] == kept
    answers = new_tokens(out, batch).tolist()
    rows = [
        after(case, model, reference.row(case, model, sample), answer, more)
        for sample, answer, more in zip(samples, answers, said)
    ]
    tokens, logits, _ = expect(case, model, rows, slow)
    for last in found:
        assert torch.equal(new_tokens(last, second), tokens)
        close(last.logits, logits)


@over_cases
@over_methods
def test_a_new_image_in_the_second_turn(case, model, name):
    (sample,) = samples = case.samples("single")
    batch = case.batch(samples)
    method, slow = METHODS[name]
    more, end = case.sample(3, case.image(9), 4, first=False), case.sample(4, first=False)
    found = []
    with attach(model, method) as pruner:
        for shown in (more, Sample([], [*sample.visuals, *more.visuals])):  # the new pixels, or all
            out = model.generate(**batch, **IN_TURNS)
            second = second_turn(case, batch, out, [more])
            last = model.generate(**second, **case.tensors([shown]), past_key_values=out.past_key_values, **IN_TURNS)
            records = pruner.records
            third = second_turn(case, second, last, [end])
            found.append((last, model.generate(**third, past_key_values=last.past_key_values, **IN_TURNS)))
    row = after(case, model, reference.row(case, model, sample), new_tokens(out, batch)[0].tolist(), more)
    tokens, logits, ((_, _, images),) = expect(case, model, [row], slow)
    assert [(record.row, record.image) for record in records] == [(0, 0), (0, 1)]
    stages = [[(layer, kept.tolist()) for layer, kept in record.stages] for record in records]
    assert stages == [image.stages for image in images]
    row = after(case, model, row, tokens[0].tolist(), end)
    later, later_logits, _ = expect(case, model, [row], slow)
    for last, third_answer in found:
        assert torch.equal(new_tokens(last, second), tokens)
        close(last.logits, logits)
        assert torch.equal(new_tokens(third_answer, third), later)
        close(third_answer.logits, later_logits)


@on_llava
@over_methods
def test_new_images_for_some_rows(case, model, name):
    """Rows lose different numbers of tokens in the middle of the sequence, after what was generated."""
    samples = case.samples("ragged")
    batch = case.batch(samples)
    method, slow = METHODS[name]
    shown, words = case.sample(2, case.image(9), 4, first=False), case.sample(5, first=False)
    said = [shown, words, words]
    with attach(model, method):
        out = model.generate(**batch, **IN_TURNS)
        width = len(shown.ids)
        ids = torch.tensor([[0] * (width - len(one.ids)) + one.ids for one in said])
        second = {
            "input_ids": torch.cat([out.sequences, ids], dim=1),
            "attention_mask": torch.cat(
                [batch["attention_mask"], torch.ones_like(new_tokens(out, batch)), (ids != 0).long()], dim=1
            ),
        }
        last = model.generate(
            **second, pixel_values=shown.visuals[0].pixels, past_key_values=out.past_key_values, **IN_TURNS
        )
    rows = [
        after(case, model, reference.row(case, model, sample), answer, more)
        for sample, answer, more in zip(samples, new_tokens(out, batch).tolist(), said)
    ]
    tokens, logits, _ = expect(case, model, rows, slow)
    assert torch.equal(new_tokens(last, second), tokens)
    close(last.logits, logits)


@on_llava
@over_methods
def test_copies_of_a_cache(case, model, name):
    """One prefix, two continuations."""
    samples = case.samples("single")
    batch = case.batch(samples)
    method, slow = METHODS[name]
    with attach(model, method):
        out = model.generate(**batch, **IN_TURNS)
        for size in (3, 6):
            more = case.sample(size, first=False)
            second = second_turn(case, batch, out, [more])
            last = model.generate(**second, past_key_values=copy.deepcopy(out.past_key_values), **IN_TURNS)
            row = reference.row(case, model, samples[0])
            row = after(case, model, row, new_tokens(out, batch)[0].tolist(), more)
            tokens, _, _ = expect(case, model, [row], slow)
            assert torch.equal(new_tokens(last, second), tokens)


@on_llava
@over_methods
def test_a_cache_cut_back_to_before_the_question(case, model, name):
    """The image stays as the first question left it; the second question follows."""
    sample = case.sample(3, case.image(0), 6)
    batch = case.batch([sample])
    method, slow = METHODS[name]
    with attach(model, method):
        out = model.generate(**batch, **IN_TURNS)
        cache = out.past_key_values
        cache.crop(-(cache.get_seq_length() - len(sample.ids) + 6))
        more = case.sample(5, first=False)
        ids = torch.tensor([sample.ids[:-6] + more.ids])
        second = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        last = model.generate(**second, past_key_values=cache, **IN_TURNS)
        again = model.generate(**batch, **IN_TURNS)
        again.past_key_values.crop(-(again.past_key_values.get_seq_length() - 10))
        with pytest.raises(ValueError, match="cut back into an image"):
            model(input_ids=ids[:, 10:], past_key_values=again.past_key_values)
    machine_ = machine(case)
    found = []
    for _ in range(STEPS):  # what the first question kept of the image is kept for the second
        row = reference.row(case, model, sample)
        images = machine_.run(row, slow)[3]
        shorter = reference.row(case, model, Sample(sample.ids[:-6] + more.ids + found, sample.visuals))
        fixed = Fixed(slow, [image.stages for image in images], machine_, row)
        logits = machine_.run(shorter, fixed)[0]
        found.append(int(logits[-1].argmax()))
    assert new_tokens(last, second)[0].tolist() == found


class Fixed:
    """A method that repeats another's cuts, merged states included."""

    def __init__(self, slow, stages, machine, row):
        self.slow, self.layers, self.ahead, self.renumbered = slow, slow.layers, slow.ahead, slow.renumbered
        self.cuts = []
        original = slow.cut

        class Spy:
            layers, ahead, renumbered = slow.layers, slow.ahead, slow.renumbered
            raters, count = staticmethod(slow.raters), staticmethod(slow.count)

            @staticmethod
            def cut(scores, states, keep):
                self.cuts.append(original(scores, states, keep))
                return self.cuts[-1]

        machine.run(row, Spy)

    def raters(self, states, image):
        return [image.asker]

    def count(self, image, layer):
        return 0

    def cut(self, scores, states, keep):
        return self.cuts.pop(0)


@on_llava
def test_beams_that_go_on(case, model):
    """The second turn of the best beams: the cache has a row for each beam."""
    batch = case.batch(case.samples("single"))
    with attach(model, FastV(keep=KEEP, layer=2)):
        out = model.generate(**batch, num_beams=2, num_return_sequences=2, **IN_TURNS)
        ids = torch.cat([batch["input_ids"].repeat(2, 1), torch.tensor([[40, 41, 42]] * 2)], dim=1)
        cache = out.past_key_values
        cache.crop(-(cache.get_seq_length() - batch["input_ids"].shape[1]))
        last = model.generate(input_ids=ids, past_key_values=cache, **IN_TURNS)
        alone = model.generate(**batch, **IN_TURNS).past_key_values
        alone.crop(-(alone.get_seq_length() - batch["input_ids"].shape[1]))
        alone.batch_repeat_interleave(2)
        repeated = model.generate(input_ids=ids, past_key_values=alone, **IN_TURNS)
    assert torch.equal(last.sequences, repeated.sequences)
    assert torch.equal(last.sequences[0], last.sequences[1])


@over_cases
@over_methods
def test_decoding_by_hand(case, model, name):
    """The loop that people write: a mask that grows, and the cache from the output."""
    batch = case.batch(case.samples("ragged"))
    method, _ = METHODS[name]
    mask, found = batch["attention_mask"], []
    with attach(model, method), torch.no_grad():
        out = model(**batch, use_cache=True)
        for _ in range(3):
            token = out.logits[:, -1].argmax(-1, keepdim=True)
            found.append(token)
            mask = torch.cat([mask, torch.ones_like(token)], dim=1)
            out = model(input_ids=token, attention_mask=mask, past_key_values=out.past_key_values)
    assert torch.equal(torch.cat(found, dim=1), known(case, "ragged", name)[0][:, :3])

"""A method before the LLM, then one inside it."""

import pytest
import torch

from tests.pruning.layers.test_generate import (
    GREEDY,
    METHODS,
    STEPS,
    TOLD,
    close,
    new_tokens,
    on_llava,
    over_cases,
    over_methods,
    stages,
)
from tests.support import layers_reference as reference
from tests.support.deep_models import LAYERS, machine
from tests.support.families import reference as prompts
from vlprune import Budget, DppOnly, FastV, PyramidDrop, Random, Script, SparseVLM, attach

FIRST = 10


@over_cases
@over_methods
def test_composition_equals_the_reference(case, model, name):
    samples = case.samples("ragged")
    batch = case.batch(samples)
    method, slow = METHODS[name]
    chosen, found = prompts.total("script", FIRST), []
    for sample in samples:
        row = reference.row(case, model, sample, chosen)
        if case.positions != ("grid",):  # before the LLM, the gaps are closed
            row.prompt.places, row.prompt.after = list(range(len(row.prompt.ids))), len(row.prompt.ids)
        found.append(reference.answer(case, model, machine(case), row, slow, STEPS))
    with attach(model, Script(keep=FIRST, fusion="supplement") + method) as pruner:
        out = model.generate(**batch, **GREEDY, **TOLD)
        static = model.generate(**batch, **GREEDY, cache_implementation="static")
    expected = [image.stages for _, _, images in found for image in images]
    assert [stages(record) for record in pruner.records] == expected
    assert torch.equal(new_tokens(out, batch), torch.tensor([said for said, _, _ in found]))
    close(out.logits, torch.stack([logits for _, logits, _ in found], dim=1))
    assert torch.equal(static, out.sequences)
    for record in pruner.records:
        n = min(FIRST, record.before)
        assert record.entering == n
        assert record.layer_average == pytest.approx(method.accounting(n, LAYERS).layer_average)
        assert record.query is None
        assert record.source == "llm"


@on_llava
def test_keep_all_of_both_is_the_plain_model(case, model):
    batch = case.batch(case.samples("ragged"))
    plain = model.generate(**batch, **GREEDY)
    with attach(model, Random(keep=1.0) + FastV(keep=1.0)):
        assert torch.equal(model.generate(**batch, **GREEDY), plain)


@on_llava
def test_one_of_both_that_keeps_all_is_the_other(case, model):
    batch = case.batch(case.samples("ragged"))
    for both, one in (
        (DppOnly(keep=9) + PyramidDrop(keep=1.0), DppOnly(keep=9)),
        (DppOnly(keep=1.0) + PyramidDrop(), PyramidDrop()),
    ):
        with attach(model, both):
            found = model.generate(**batch, **GREEDY)
        with attach(model, one):
            assert torch.equal(model.generate(**batch, **GREEDY), found)


@on_llava
def test_a_second_turn(case, model):
    """A new image is cut twice, and what the first turn left stays."""
    batch = case.batch(case.samples("single"))
    with attach(model, DppOnly(keep=FIRST) + SparseVLM(keep=3, layers=(1, 2, 4))) as pruner:
        out = model.generate(**batch, **GREEDY, **TOLD)
        kept = pruner.last.kept.tolist()
        more = case.sample(2, case.image(5), 4, first=False)
        ids = torch.cat([out.sequences, torch.tensor([more.ids])], dim=1)
        model.generate(
            input_ids=ids, pixel_values=more.visuals[0].pixels, past_key_values=out.past_key_values, **GREEDY
        )
        assert pruner.records[0].kept.tolist() == kept
        assert [record.entering for record in pruner.records] == [FIRST, FIRST]
        assert [len(part) for _, part in pruner.last.stages] == [len(part) for _, part in pruner.records[0].stages]


@on_llava
def test_more_than_is_left_is_refused(case, model):
    with attach(model, Random(keep=5) + FastV(keep=9)), pytest.raises(ValueError, match="keep=9: the image has only 5"):
        model.generate(**case.batch(case.samples("single")), **GREEDY)


def test_what_can_be_added():
    both = Script(keep=192) + FastV(keep=64)
    assert both.name == "script+fastv"
    assert both.accounting(576, 32) == (192, 72.0)
    assert (Script(keep=192) + FastV(keep=0.5)).accounting(576, 32) == (192, 102.0)
    assert (Random(keep=Budget(ratio=0.5)) + PyramidDrop()).accounting(576, 32) == (288, 135.0)
    for first, second in ((FastV(), Script()), (Script(), Random()), (Script(), Script()), (both, FastV())):
        with pytest.raises(TypeError) as error:
            first + second
        sentence = "the first must choose before the LLM and the second inside it, as in script + fastv."
        assert str(error.value) == f"{first.name} + {second.name}: {sentence}"
    with pytest.raises(TypeError, match="unsupported operand"):
        Script() + 3

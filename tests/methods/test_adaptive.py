"""Budgets that follow the image."""

import pytest
import torch

from tests.support.families import reference
from tests.support.method_models import CASES
from vlprune import Budget, Random, ScriptPlus, attach
from vlprune.types import Query, TokenView

STEPS = 4
each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


def view_and_query(seed=0, B=3, rows=6, columns=6, d=8, flat=0):
    """Images of noise; `flat` of the first one's tokens are the same."""
    g = torch.Generator().manual_seed(seed)
    tokens = torch.randn(B, rows * columns, d, generator=g)
    tokens[0, :flat] = tokens[0, :1]
    query = Query(tokens, torch.randn(B, 1, d, generator=g), 1, "llm", ("?",) * B)
    return TokenView(tokens, (rows, columns)), query


@pytest.mark.parametrize("fusion", ["released", "filter"])
def test_an_image_keeps_what_still_adds(fusion):
    view, query = view_and_query(flat=34)
    budget = Budget(adaptive=0.2, mean=4)
    found = ScriptPlus(keep=budget, fusion=fusion).select(view, query)
    fixed = ScriptPlus(keep=16, fusion=fusion).select(view, query)
    assert torch.equal(found.order, fixed.order)
    assert found.sizes[0] < max(found.sizes)
    for kept, order, gains, size in zip(found.kept, fixed.order, found.gains.tolist(), found.sizes):
        assert sorted(set(kept.tolist())) == sorted(order[:size].tolist())
        assert kept[:size].tolist() == sorted(order[:size].tolist())
        adding = [gain >= 0.2 * gains[0] for gain in gains]
        first = adding.index(False) if False in adding else 16
        assert size == min(16, max(1, first))


def test_bounds_and_share():
    view, query = view_and_query()
    everything = ScriptPlus(keep=Budget(adaptive=0.0, mean=4)).select(view, query)
    nothing = ScriptPlus(keep=Budget(adaptive=1.0, mean=8)).select(view, query)
    assert everything.sizes == (16,) * 3
    assert nothing.sizes == (2,) * 3


@each_case
def test_batches_are_singles_and_answers_the_references(case):
    model = case.model()
    samples = case.samples("ragged")
    batch = case.batch(samples)
    method = ScriptPlus(keep=Budget(adaptive=0.4, mean=4))
    with attach(model, method, cache_bytes=0) as pruner:
        out = model.generate(**batch, do_sample=False, max_new_tokens=STEPS)
        kept = [record.kept.tolist() for record in pruner.records]
        for record in pruner.records:
            assert record.after == len(record.kept) == Budget.of(method.keep).needed(record.gains.tolist())
            assert 1 <= record.after <= 16
        alone = []
        for sample in samples:
            model.generate(**case.batch([sample]), do_sample=False, max_new_tokens=1)
            alone += [record.kept.tolist() for record in pruner.records]
    assert kept == alone
    left = iter(kept)
    expected, _ = reference.answers(case, model, samples, lambda *image: next(left), STEPS)
    assert torch.equal(out[:, batch["input_ids"].shape[1] :], expected)


def test_fitting_a_share():
    view, query = view_and_query(B=40, flat=30)
    gains = ScriptPlus(keep=Budget(adaptive=0.0, mean=6)).select(view, query).gains.tolist()
    budget = Budget.fit(gains, mean=6)
    sizes = ScriptPlus(keep=budget).select(view, query).sizes
    assert 5.5 <= sum(sizes) / len(sizes) <= 6
    with pytest.raises(ValueError, match="gains has no images"):
        Budget.fit([], mean=6)


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"adaptive": 0.1}, "go together"),
        ({"mean": 64}, "go together"),
        ({"adaptive": 0.1, "mean": 64, "tokens": 64}, "exactly one"),
        ({"adaptive": 1.5, "mean": 64}, r"adaptive=1.5: a share must lie in \[0, 1\]"),
        ({"adaptive": 0.1, "mean": 0}, "mean=0"),
    ],
)
def test_wrong_budgets(wrong, says):
    with pytest.raises(ValueError, match=says):
        Budget(**wrong)


def test_what_does_not_go_together():
    adaptive = Budget(adaptive=0.1, mean=4)
    with pytest.raises(ValueError, match="supplement"):
        ScriptPlus(keep=adaptive, fusion="supplement")
    with pytest.raises(ValueError, match="power=-1"):
        ScriptPlus(power=-1.0)
    case = CASES[0]
    model = case.model()
    with attach(model, Random(keep=adaptive)), pytest.raises(ValueError, match="random keeps a fixed number"):
        model.generate(**case.batch(case.samples("ragged")), max_new_tokens=1)

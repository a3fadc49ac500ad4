"""How far relevance maps are trusted: against a slow reference, and what must hold whatever the map."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlprune import ScriptPlus
from vlprune.selection import evidence_trust, relevance_evidence
from vlprune.types import Query, TokenView

EXACT = settings(derandomize=True, deadline=None, max_examples=50)
grids = st.tuples(st.integers(2, 9), st.integers(2, 9))


def standard(values):
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
    return [(v - mean) / deviation for v in values]


def slow_evidence(relevance, tokens, rows, columns):
    """The docstring of `relevance_evidence` for one image, in Python's floats."""
    z, n = standard(relevance), rows * columns
    pairs = [(i, i + 1) for i in range(n) if (i + 1) % columns] + [(i, i + columns) for i in range(n - columns)]
    shape = sum(z[i] * z[j] * (z[i] + z[j]) / 2 for i, j in pairs) / len(pairs)
    units = [[v / math.hypot(*token) for v in token] for token in tokens]
    cosines = [sum(sum(a * b for a, b in zip(u, v)) for v in units) / n for u in units]
    rarity, order, ends = standard([-c for c in cosines]), sorted(range(n), key=lambda i: z[i]), max(1, n // 36)
    rarer = sum(rarity[i] for i in order[-ends:]) / ends - sum(rarity[i] for i in order[:ends]) / ends
    return shape + rarer / 4


def some_maps(seed, rows, columns, B=2):
    g = torch.Generator().manual_seed(seed)
    return torch.rand(B, rows * columns, generator=g), torch.randn(B, rows * columns, 5, generator=g)


@EXACT
@given(seed=st.integers(0, 10**6), grid=grids)
def test_evidence_matches_the_reference(seed, grid):
    relevance, tokens = some_maps(seed, *grid)
    got = relevance_evidence(relevance, tokens, grid=grid)
    want = [slow_evidence(*image, *grid) for image in zip(relevance.double().tolist(), tokens.double().tolist())]
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), torch.tensor(want).double(), rtol=1e-4, atol=1e-4)


@EXACT
@given(seed=st.integers(0, 10**6), grid=grids, scale=st.floats(0.01, 100.0), shift=st.floats(-3.0, 3.0))
def test_turning_a_map_turns_evidence_and_scaling_does_nothing(seed, grid, scale, shift):
    relevance, tokens = some_maps(seed, *grid)
    evidence = relevance_evidence(relevance, tokens, grid=grid)
    torch.testing.assert_close(relevance_evidence(1 - relevance, tokens, grid=grid), -evidence, rtol=1e-3, atol=1e-3)
    moved = relevance_evidence(scale * (relevance.double() + shift), tokens, grid=grid)
    torch.testing.assert_close(moved, evidence, rtol=1e-2, atol=1e-2)
    trust = evidence_trust(evidence)
    assert ((trust >= 0) & (trust <= 1)).all()
    assert (torch.minimum(trust, evidence_trust(-evidence)) == 0).all()  # never both a map and the turned one


def test_a_map_that_is_the_same_everywhere_says_nothing():
    _, tokens = some_maps(0, 4, 4)
    for value in (0.0, 1.0, 0.1):
        assert relevance_evidence(torch.full((2, 16), value), tokens, grid=(4, 4)).tolist() == [0.0, 0.0]
    assert relevance_evidence(torch.ones(1, 1), torch.ones(1, 1, 3)).tolist() == [0.0]
    assert relevance_evidence(torch.ones(0, 4), torch.ones(0, 4, 3)).shape == (0,)


def test_a_batch_is_its_images():
    relevance, tokens = some_maps(3, 6, 6, B=4)
    alone = [relevance_evidence(r[None], x[None], grid=(6, 6)) for r, x in zip(relevance, tokens)]
    torch.testing.assert_close(relevance_evidence(relevance, tokens, grid=(6, 6)), torch.cat(alone))


def test_what_is_refused():
    relevance, tokens = some_maps(0, 2, 3)
    with pytest.raises(ValueError, match=r"grid=\(2, 2\)"):
        relevance_evidence(relevance, tokens, grid=(2, 2))
    for trust in (-0.1, 1.5, "map"):
        with pytest.raises(ValueError, match="trust="):
            ScriptPlus(trust=trust)


@pytest.mark.parametrize("own", [True, False])
def test_trust_goes_from_no_question_to_the_question(own):
    g = torch.Generator().manual_seed(1)
    tokens, other = torch.randn(12, 36, 8, generator=g), torch.randn(12, 36, 8, generator=g)
    view = TokenView(tokens, (6, 6))
    query = Query(tokens if own else other, torch.randn(12, 1, 8, generator=g), 1, "llm", ("?",) * 12)
    plain, none = ScriptPlus(keep=6).select(view, query), ScriptPlus(keep=6).select(view, None)
    assert torch.equal(ScriptPlus(keep=6, trust=0.0).select(view, query).kept, none.kept)
    by_image = ScriptPlus(keep=6, trust="image").select(view, query)
    trust = evidence_trust(relevance_evidence(plain.relevance, tokens, grid=(6, 6)))
    assert torch.equal(by_image.relevance, plain.relevance)  # shown as it was
    assert len(set(trust.tolist())) > 1
    for kept, share, fully, without in zip(by_image.kept, trust.tolist(), plain.kept, none.kept):
        assert share not in (0.0, 1.0) or torch.equal(kept, fully if share else without)

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import selection_reference as reference
from vlprune.selection import dot_scores, relevance_scores
from vlprune.selection.numerics import unit_vectors
from vlprune.selection.relevance import relevance_on_device, relevance_on_host

EXACT = settings(derandomize=True, deadline=None, max_examples=50)


@EXACT
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(2, 12),
    lq=st.integers(1, 5),
    d=st.integers(2, 6),
    sign=st.sampled_from([1, -1]),
    masked=st.booleans(),
)
def test_scores_match_the_reference(seed, n, lq, d, sign, masked):
    g = torch.Generator().manual_seed(seed)
    x, q = torch.randn(2, n, d, generator=g), torch.randn(2, lq, d, generator=g)
    mask = torch.rand(2, lq, generator=g) < 0.6
    mask[:, 0] = True
    got = relevance_scores(x, q, query_mask=mask if masked else None, sign=sign)
    for b in range(2):
        rows = mask[b].tolist() if masked else None
        want = reference.relevance_scores(x[b].double().tolist(), q[b].double().tolist(), rows, sign)
        torch.testing.assert_close(got[b].double(), torch.tensor(want).double(), rtol=0, atol=2e-5)
    assert got.amin(1).tolist() == [0.0, 0.0]
    assert got.amax(1).tolist() == [1.0, 1.0]


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), d=st.integers(1, 64), sign=st.sampled_from([1, -1]))
def test_both_ways_give_the_same(seed, n, d, sign):
    """The one for an accelerator, here on the CPU, and the one for the CPU; with zero vectors and without any range."""
    g = torch.Generator().manual_seed(seed)
    x, q = torch.randn(3, n, d, generator=g), torch.randn(3, 1, d, generator=g)
    x[0, : n // 3] = 0.0
    x[1] = x[1, :1]
    (unit, length), direction = unit_vectors(x), unit_vectors(q)[0]
    got, want = relevance_on_host(x, length, q, sign), relevance_on_device(x, length, q, sign)
    assert got.dtype == want.dtype
    span = (unit * direction).sum(2, dtype=torch.float64)
    span = (span.amax(1) - span.amin(1)).clamp(min=2e-6)  # what scaling magnifies
    assert ((got - want).abs().amax(1) <= 2e-7 + 1e-7 / span).all()


def test_sign_turns_the_order_round():
    x, q = torch.randn(1, 9, 4), torch.randn(1, 2, 4)
    torch.testing.assert_close(relevance_scores(x, q, sign=-1), 1 - relevance_scores(x, q))


def test_masked_tokens_are_never_looked_at():
    x, q = torch.randn(2, 7, 4), torch.randn(2, 3, 4)
    padded = torch.cat([q, torch.full((2, 2, 4), torch.nan)], 1)
    mask = torch.tensor([[True] * 3 + [False] * 2] * 2)
    torch.testing.assert_close(relevance_scores(x, padded, query_mask=mask), relevance_scores(x, q))


def test_mean_is_of_embeddings_not_of_directions():
    x = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    q = torch.tensor([[[9.0, 0.0], [0.0, 1.0]]])  # the long one decides
    assert relevance_scores(x, q)[0, 0] > 0.99 * relevance_scores(x, q)[0, 2]
    assert relevance_scores(x, q).argmax() == 0


def test_scale_of_tokens_and_query_does_not_matter():
    x, q = torch.randn(1, 9, 4), torch.randn(1, 2, 4)
    r = relevance_scores(x, q)
    torch.testing.assert_close(relevance_scores(x * torch.logspace(-25, 25, 9)[None, :, None], q * 1e-12), r)


def test_nothing_to_tell_apart_gives_ones():
    g = torch.Generator().manual_seed(0)
    one = torch.randn(1, 1, 64, generator=g)
    q = torch.randn(1, 3, 64, generator=g)
    for x in (one.expand(1, 33, 64), one * torch.rand(1, 33, 1, generator=g), torch.zeros(1, 33, 64)):
        assert relevance_scores(x, q).tolist() == [[1.0] * 33]
    x = torch.randn(1, 33, 64, generator=g)
    assert relevance_scores(x, torch.zeros(1, 3, 64)).tolist() == [[1.0] * 33]
    assert relevance_scores(x[:, :1], q).tolist() == [[1.0]]


def test_permutation_moves_the_scores_with_the_tokens():
    x, q, p = torch.randn(1, 50, 8), torch.randn(1, 4, 8), torch.randperm(50)
    assert torch.equal(relevance_scores(x[:, p], q), relevance_scores(x, q)[:, p])


def test_images_are_scaled_one_by_one():
    x, q = torch.randn(3, 20, 8), torch.randn(3, 4, 8)
    together = relevance_scores(x, q)
    for b in range(3):
        assert torch.equal(relevance_scores(x[b : b + 1], q[b : b + 1]), together[b : b + 1])


def tokens(seed, n, d):
    return torch.randn(2, n, d, generator=torch.Generator().manual_seed(seed))


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 9), sign=st.sampled_from([1, -1]))
def test_dot_scores(seed, n, sign):
    x, query = tokens(seed, n, 5), tokens(seed + 1, 3, 5)
    want = sign * torch.einsum("bnd,bd->bn", x.double(), query.double().mean(1))
    torch.testing.assert_close(dot_scores(x, query, sign=sign).double(), want, rtol=1e-5, atol=1e-6)


def test_dot_scores_refuse_what_is_not_finite():
    x, query = tokens(3, 4, 5), tokens(4, 1, 5)
    with pytest.raises(ValueError, match="sign=0: choose from 1, -1"):
        dot_scores(x, query, sign=0)
    x[1, 2, 0] = float("nan")
    with pytest.raises(ValueError, match="features=nan at batch 1, token 2, channel 0: must be finite in float32"):
        dot_scores(x, query)

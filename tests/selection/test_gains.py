"""What each choice adds, against determinants in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlprune.selection import greedy_gains, greedy_map_features, query_kernel

EXACT = settings(derandomize=True, deadline=None, max_examples=30)


def case(seed, B=2, n=14, d=8):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, n, d, generator=g), torch.rand(B, n, generator=g)


@pytest.mark.parametrize("kind", ["s", "s_prime"])
@EXACT
@given(seed=st.integers(0, 10**6), k=st.integers(1, 6))
def test_gains_multiply_to_the_determinant(kind, seed, k):
    x, r = case(seed)
    order = greedy_map_features(x, r, k, kind=kind)
    gains = greedy_gains(x, r, order, kind=kind).double()
    for b in range(2):
        kernel = query_kernel(x, r, kind=kind)[b].double()
        for t in range(1, k + 1):
            block = kernel[order[b, :t]][:, order[b, :t]]
            torch.testing.assert_close(gains[b, :t].prod(), torch.linalg.det(block), rtol=2e-2, atol=1e-7)


@EXACT
@given(seed=st.integers(0, 10**6))
def test_they_fall_in_the_order_of_choice_and_end_with_the_features(seed):
    x, r = case(seed, n=14, d=5)
    gains = greedy_gains(x, r, greedy_map_features(x, r, 14))
    assert (gains[:, 1:6] <= gains[:, :5] + 1e-5).all()
    assert (gains[:, 5:] <= 3e-5 * gains[:, :1]).all()  # five channels, five directions


def test_zero_vectors_duplicates_and_no_relevance():
    x = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]])
    order = torch.tensor([[1, 2, 0]])
    assert greedy_gains(x, torch.ones(1, 3), order)[0].round(decimals=4).tolist() == [1.0, 0.0, 0.0]
    assert greedy_gains(x, torch.zeros(1, 3), order).isfinite().all()
    assert greedy_gains(x[:0], torch.ones(0, 3), order[:0]).shape == (0, 3)

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlprune.selection import highest, remaining
from vlprune.selection.top_k import best_first

EXACT = settings(derandomize=True, deadline=None, max_examples=40)


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 30), scale=st.sampled_from([1e-6, 1.0, 1e6]), data=st.data())
def test_the_highest_come_first_and_ties_go_to_the_lower_index(seed, n, scale, data):
    k = data.draw(st.integers(0, n))
    g = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 6, (3, n), generator=g).float()  # many exact ties
    noisy = scale * scores * (1 + 1e-7 * torch.randn(3, n, generator=g))  # and rounding on top, in any unit
    want = [sorted(range(n), key=lambda i: (-row[i], i))[:k] for row in scores.tolist()]
    assert highest(noisy, k).tolist() == want


def test_small_scores_are_told_apart_in_their_own_unit():
    """Attention over many tokens is small: a difference of 2e-6 there is a real one."""
    attention = torch.tensor([[1.0e-5, 1.2e-5, 1.1e-5, 1.2e-5]])
    assert highest(attention, 4).tolist() == [[1, 3, 2, 0]]
    one_large = torch.tensor([[0.9] + [1e-4, 2e-4, 3e-4] * 30])
    assert highest(one_large, 4).tolist() == [[0, 3, 6, 9]]


def test_exact_ties_are_of_equal_values_only():
    g = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 5, (3, 20), generator=g) / 4
    scores[:, ::3] += 1e-7
    want = [sorted(range(20), key=lambda i: (-row[i], i)) for row in scores.tolist()]
    assert best_first(scores, exact_ties=True).tolist() == want
    assert best_first(scores).tolist() != want


def test_zeros_and_an_empty_batch():
    assert highest(torch.zeros(2, 3), 2).tolist() == [[0, 1], [0, 1]]
    assert highest(torch.zeros(0, 3), 2).shape == (0, 2)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="k=4: must be from 0 to 3, the number of tokens"):
        highest(torch.zeros(1, 3), 4)
    with pytest.raises(ValueError, match="scores=inf at batch 0, token 1: must be finite in float32"):
        highest(torch.tensor([[0.0, float("inf")]]), 1)
    with pytest.raises(TypeError, match=r"scores of dtype torch\.int64: must be a floating-point tensor"):
        highest(torch.zeros(1, 3, dtype=torch.int64), 1)
    with pytest.raises(TypeError, match=r"chosen of dtype torch\.float32: must be an int64 tensor"):
        remaining(torch.zeros(1, 3), 5)
    with pytest.raises(ValueError, match="n=2: must be from 3"):
        remaining(torch.tensor([[0, 1, 2]]), 2)


@EXACT
@given(n=st.integers(1, 20), data=st.data())
def test_what_remains(n, data):
    k = data.draw(st.integers(0, n))
    rows = [data.draw(st.permutations(range(n)))[:k] for _ in range(2)]
    got = remaining(torch.tensor(rows, dtype=torch.int64).view(2, k), n)
    assert got.tolist() == [[i for i in range(n) if i not in row] for row in rows]

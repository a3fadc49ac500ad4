import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import selection_reference as reference
from vlprune.selection import assign, dot_scores, group_means

EXACT = settings(derandomize=True, deadline=None, max_examples=40)


def tokens(seed, B, n, d, dtype=torch.float32):
    return torch.randn(B, n, d, generator=torch.Generator().manual_seed(seed)).to(dtype)


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 14), d=st.integers(1, 5), data=st.data())
def test_assign_takes_the_most_similar_target_and_of_equals_the_first(seed, n, d, data):
    x = tokens(seed, 2, n, d)
    copies = data.draw(st.integers(0, n // 2))
    x[:, n - copies :] = 2 * x[:, :copies]
    c = data.draw(st.integers(1, n))
    targets = [data.draw(st.permutations(range(n)))[:c] for _ in range(2)]
    got = assign(x, torch.tensor(targets)).tolist()
    for b in range(2):
        for i in range(n):
            to = [reference.cosine(floats, x[b, i].tolist()) for floats in x[b, targets[b]].tolist()]
            assert got[b][i] == next(place for place, value in enumerate(to) if value >= max(to) - 2e-6)


def test_equal_targets_are_equal_whatever_the_rounding():
    x = tokens(5, 200, 1, 300)
    likes = torch.cat([x, 0.7 * x, 3 * x, 1.3 * x], 1)  # some cosines round to above the first
    assert not assign(likes, torch.tensor([[1, 2, 3]]).repeat(200, 1)).any()


def test_a_zero_vector_goes_to_the_first_target():
    x = tokens(0, 1, 5, 3)
    x[0, 2] = 0
    assert assign(x, torch.tensor([[4, 1, 3]]))[0, 2] == 0


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 14), data=st.data())
def test_means_of_groups(seed, n, data):
    dtype = data.draw(st.sampled_from([torch.float32, torch.bfloat16]))
    x = tokens(seed, 2, n, 3, dtype)
    count = data.draw(st.integers(1, n))
    groups = [data.draw(st.lists(st.integers(-1, count - 1), min_size=n, max_size=n)) for _ in range(2)]
    got = group_means(x, torch.tensor(groups), count)
    assert got.dtype == torch.float32
    for b in range(2):
        for group in range(count):
            inside = [x[b, i].double() for i in range(n) if groups[b][i] == group]
            want = torch.stack(inside).mean(0) if inside else torch.zeros(3).double()
            torch.testing.assert_close(got[b, group].double(), want, rtol=1e-6, atol=1e-6)


def test_a_group_of_one_is_that_token_bit_for_bit():
    x = tokens(1, 2, 50, 7)
    assert torch.equal(group_means(x, torch.arange(50).repeat(2, 1), 50), x)


def test_wrong_arguments():
    x = tokens(2, 1, 4, 3)
    with pytest.raises(ValueError, match="targets must be from 0 to 3, got 4"):
        assign(x, torch.tensor([[1, 4]]))
    with pytest.raises(ValueError, match="groups must be from -1 to 1, got 2"):
        group_means(x, torch.tensor([[0, 1, 2, -1]]), 2)
    with pytest.raises(ValueError, match="groups must have shape"):
        group_means(x, torch.tensor([[0, 1, 1]]), 2)
    with pytest.raises(ValueError, match="count must be from 1 to 4"):
        group_means(x, torch.zeros(1, 4, dtype=torch.int64), 5)
    x[0, 1, 2] = float("inf")
    for call in (lambda: assign(x, torch.tensor([[0]])), lambda: group_means(x, torch.tensor([[0, 0, 0, 0]]), 1)):
        with pytest.raises(ValueError, match="features must be finite in float32, got inf at batch 0, token 1"):
            call()


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 9), sign=st.sampled_from([1, -1]))
def test_dot_scores(seed, n, sign):
    x, query = tokens(seed, 2, n, 5), tokens(seed + 1, 2, 3, 5)
    want = sign * torch.einsum("bnd,bd->bn", x.double(), query.double().mean(1))
    torch.testing.assert_close(dot_scores(x, query, sign=sign).double(), want, rtol=1e-5, atol=1e-6)


def test_dot_scores_refuse_what_is_not_finite():
    x, query = tokens(3, 2, 4, 5), tokens(4, 2, 1, 5)
    with pytest.raises(ValueError, match="sign must be one of 1, -1"):
        dot_scores(x, query, sign=0)
    x[1, 2, 0] = float("nan")
    with pytest.raises(ValueError, match="features must be finite in float32, got nan at batch 1, token 2, channel 0"):
        dot_scores(x, query)

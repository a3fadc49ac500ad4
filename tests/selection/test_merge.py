import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import layers_reference
from tests.support import selection_reference as reference
from vlprune.selection import assign, group_means
from vlprune.selection.merge import density_peaks

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
    with pytest.raises(ValueError, match="targets=4: must be from 0 to 3"):
        assign(x, torch.tensor([[1, 4]]))
    with pytest.raises(ValueError, match="groups=2: must be from -1 to 1"):
        group_means(x, torch.tensor([[0, 1, 2, -1]]), 2)
    with pytest.raises(ValueError, match=r"groups of shape \(1, 3\): must be \(B, n\) with B=1, n=4"):
        group_means(x, torch.tensor([[0, 1, 1]]), 2)
    with pytest.raises(ValueError, match="count=5: must be from 1 to 4"):
        group_means(x, torch.zeros(1, 4, dtype=torch.int64), 5)
    x[0, 1, 2] = float("inf")
    for call in (lambda: assign(x, torch.tensor([[0]])), lambda: group_means(x, torch.tensor([[0, 0, 0, 0]]), 1)):
        with pytest.raises(ValueError, match="features=inf at batch 0, token 1, channel 2: must be finite in float32"):
            call()


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("n", [4, 7, 40])
def test_density_peaks_equal_the_loop(n, count):
    states = torch.randn(3, n, 6, generator=torch.Generator().manual_seed(n))
    centres, cluster = density_peaks(states, count)
    merged = group_means(states, cluster, count)
    for points, c, k, m in zip(states.double(), centres.tolist(), cluster.tolist(), merged):
        assert layers_reference.peaks(points, count) == (c, k)
        for j in range(count):
            torch.testing.assert_close(m[j], points[torch.tensor(k) == j].mean(0).float())


def test_density_peaks_of_equal_and_of_distant_tokens():
    centres, cluster = density_peaks(torch.ones(1, 5, 3), 2)
    assert centres.tolist() == [[0, 1]]
    assert cluster.tolist() == [[0, 1, 0, 0, 0]]
    far = torch.randn(1, 20, 6, generator=torch.Generator().manual_seed(0)) * 1e4  # exp(-d²) would be 0 for all
    near = far / 1e4
    assert density_peaks(far, 3)[0].unique().numel() == 3
    assert density_peaks(near[:, :1], 1)[1].tolist() == [[0]]

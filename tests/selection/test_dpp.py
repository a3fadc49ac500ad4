import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import selection_reference as reference
from vlprune.selection import greedy_map, greedy_map_features, query_kernel, select_script
from vlprune.selection.dpp import kernel_weights, matrix_for_greedy, worth_a_matrix
from vlprune.selection.greedy import MatrixKernel, VectorKernel, greedy_on_device, greedy_on_host
from vlprune.selection.numerics import unit_vectors

EXACT = settings(derandomize=True, deadline=None, max_examples=40)
FEWER = settings(EXACT, max_examples=30)
KINDS = ["s_prime", "s"]


def kernel_tensor(*seeds, n, rank=None):
    return torch.tensor(np.stack([reference.random_kernel(s, n, rank) for s in seeds])).float()


def image(seed, B, n, d):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, n, d, generator=g), 0.2 + 0.8 * torch.rand(B, n, generator=g)


@pytest.mark.parametrize("kind", KINDS)
@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 9), d=st.integers(1, 6))
def test_kernel_matches_the_reference(kind, seed, n, d):
    x, r = image(seed, 2, n, d)
    got = query_kernel(x, r, kind=kind)
    for b in range(2):
        want = reference.query_kernel(x[b].double().tolist(), r[b].double().tolist(), kind)
        torch.testing.assert_close(got[b].double(), torch.tensor(want).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_kernel_diagonal_is_exact_and_zero_vectors_are_zero(kind):
    x, r = image(0, 1, 40, 300)
    x[0, 3] = 0
    kernel = query_kernel(x, r, kind=kind)
    want = r * r if kind == "s_prime" else r.clone()
    want[0, 3] = 0
    assert torch.equal(kernel.diagonal(dim1=1, dim2=2), want)
    assert not kernel[0, 3].any()
    assert torch.equal(kernel, kernel.mT)


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 7), eps=st.sampled_from([0.0, 1e-6]))
def test_each_step_is_the_best_single_step(seed, n, eps):
    kernel = kernel_tensor(seed, seed + 1, n=n)
    got = greedy_map(kernel, n, eps=eps).tolist()
    for b, order in enumerate(got):
        for t in range(n):
            chosen = [*order[:t], order[t]]
            best = max(reference.det(kernel[b], [*order[:t], i]) for i in range(n) if i not in order[:t])
            assert reference.det(kernel[b], chosen) >= best * (1 - 1e-4) - 1e-12
        assert sorted(order) == list(range(n))


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 12), data=st.data())
def test_greedy_matches_brute_force(seed, n, data):
    k = data.draw(st.integers(1, n))
    kernel = kernel_tensor(seed, seed + 1, n=n)
    assert greedy_map(kernel, k).tolist() == [reference.greedy(m.double().tolist(), k) for m in kernel]


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(2, 10), data=st.data())
def test_candidates_go_first_and_the_rest_follows(seed, n, data):
    c = data.draw(st.integers(1, n))
    k = data.draw(st.integers(1, n))
    lists = [data.draw(st.permutations(range(n)))[:c] for _ in range(2)]
    x, r = image(seed, 2, n, n + 2)
    kernel = query_kernel(x, r)
    want = [reference.greedy(m.double().tolist(), k, set(c)) for m, c in zip(kernel, lists)]
    assert greedy_map(kernel, k, candidates=torch.tensor(lists)).tolist() == want
    assert greedy_map_features(x, r, k, candidates=torch.tensor(lists)).tolist() == want


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [3, 40, 90])  # one row at a time, and the block
def test_features_path_is_the_kernel_path(kind, k):
    x, r = image(5, 3, 90, 128)
    want = greedy_map(query_kernel(x, r, kind=kind), k, eps=1e-5)
    assert torch.equal(greedy_map_features(x, r, k, kind=kind, eps=1e-5), want)


@pytest.mark.parametrize("kind", KINDS)
def test_rows_one_at_a_time_are_rows_of_the_kernel(kind):
    x, r = image(9, 4, 100, 12)
    x = x + 1.0  # similar tokens, so that a wrong row shows
    assert not worth_a_matrix(100, 6)
    assert torch.equal(greedy_map_features(x, r, 6, kind=kind), greedy_map(query_kernel(x, r, kind=kind), 6))


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 40), data=st.data())
def test_both_loops_choose_alike(seed, n, data):
    """The one for an accelerator, here on the CPU, and the one for the CPU; with duplicates and zero vectors too."""
    k, c = data.draw(st.integers(1, n)), data.draw(st.integers(0, n))
    x, r = image(seed, 3, n, data.draw(st.sampled_from([2, 8, 48])))
    copies = data.draw(st.integers(0, n // 2))
    x[:, n - copies :] = x[:, :copies].clone()
    x[:, : data.draw(st.integers(0, 1))] = 0.0
    picks = [sorted(data.draw(st.permutations(range(n)))[:c]) for _ in range(3)]
    candidates = torch.tensor(picks) if c else None
    unit, length = unit_vectors(x)
    weight, diagonal = kernel_weights(length, r, "s_prime")
    for kernel in (MatrixKernel(query_kernel(x, r)), VectorKernel(unit, weight, diagonal)):
        order, gains = greedy_on_device(kernel, k, 1e-6, candidates)
        on_host = greedy_on_host(kernel, k, 1e-6, candidates)
        assert torch.equal(on_host[0], order)
        torch.testing.assert_close(on_host[1], gains, rtol=1e-4, atol=1e-5)


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 14), data=st.data())
def test_both_loops_stop_when_supplement_has_enough(seed, n, data):
    m = data.draw(st.integers(1, n))
    k = min(2 * m, n)
    x, r = image(seed, 3, n, data.draw(st.sampled_from([2, 8, 48])))
    copies = data.draw(st.integers(0, n // 2))
    x[:, n - copies :] = x[:, :copies].clone()
    agree = [m, 2 * m - k, data.draw(st.integers(2 * m - k, m))]  # all, none (or as few as there can be), some
    unit, length = unit_vectors(x)
    weight, diagonal = kernel_weights(length, r, "s_prime")
    for kernel in (MatrixKernel(query_kernel(x, r)), VectorKernel(unit, weight, diagonal)):
        for run in (greedy_on_host, greedy_on_device):
            whole, added = run(kernel, k, 1e-6, None)
            kept = [reference.survivors(*row, seed) for row in zip(whole.tolist(), [m] * 3, agree)]
            order, gains = run(kernel, k, 1e-6, None, torch.tensor(kept))
            assert order.tolist() == [reference.stopped(*row, m) for row in zip(whole.tolist(), kept)]
            assert (order >= 0).sum(1).tolist() == [2 * m - both for both in agree]
            assert torch.equal(gains, added.where(order >= 0, 0.0))


def test_the_loop_for_the_cpu_asks_for_no_row_beyond_the_last_choice():
    x, r = image(0, 1, 30, 40)
    asked = []

    class Watched(MatrixKernel):
        def on_host(self, image):
            row = super().on_host(image)
            return lambda j, v2: asked.append(j) or row(j, v2)

    kernel = Watched(query_kernel(x, r))
    whole = greedy_on_host(kernel, 20, 1e-6, None)[0][0].tolist()
    assert asked == whole[:-1]
    for agree in (10, 4, 0):
        asked.clear()
        survivors = torch.tensor([reference.survivors(whole, 10, agree, 0)])
        greedy_on_host(kernel, 20, 1e-6, None, survivors)
        assert asked == whole[: 20 - agree - 1]


@pytest.mark.parametrize("alike", [0.0, 1.0])  # the next choices are those with the largest v², or others
def test_rows_in_blocks_are_the_rows_of_the_kernel(alike):
    x, r = image(3, 2, 200, 256)
    x = x + alike * x[:, :1]
    assert not matrix_for_greedy(200, 50, x.device)
    assert matrix_for_greedy(200, 50, torch.device("cuda"))
    order = greedy_map_features(x, r, 50)
    assert torch.equal(order, greedy_map(query_kernel(x, r), 50))
    unit, length = unit_vectors(x)
    kernel = VectorKernel(unit, *kernel_weights(length, r, "s_prime"))
    rows, want = kernel.on_host(1), query_kernel(x, r)[1]
    for step, j in enumerate(order[1].tolist()):
        v2 = torch.rand(200, generator=torch.Generator().manual_seed(step)).numpy()
        got = torch.tensor(rows(j, v2))
        got[j] = want[j, j]  # of which nothing is read
        torch.testing.assert_close(got, want[j], rtol=0, atol=1e-6)


def test_kernels_choose_differently():
    x, r = image(5, 1, 60, 16)
    assert not torch.equal(greedy_map_features(x, r, 8), greedy_map_features(x, r, 8, kind="s"))


def test_a_prefix_answers_a_smaller_budget():
    x, r = image(1, 2, 70, 24)
    kernel = query_kernel(x, r)
    longest = greedy_map(kernel, 70)
    for k in (1, 2, 5, 23, 24, 25, 26, 60):
        assert torch.equal(greedy_map(kernel, k), longest[:, :k])
        assert torch.equal(greedy_map_features(x, r, k), longest[:, :k])


@pytest.mark.parametrize("kind", KINDS)
@FEWER
@given(seed=st.integers(0, 10**6), k=st.integers(1, 6))
def test_gains_multiply_to_the_determinant(kind, seed, k):
    x, r = image(seed, 2, 14, 8)
    found = select_script(x, None, k, relevance=r, kernel=kind, fusion="released")
    order, gains = found.order, found.gains.double()
    assert torch.equal(order, greedy_map_features(x, r, k, kind=kind))
    for b in range(2):
        kernel = query_kernel(x, r, kind=kind)[b].double()
        for t in range(1, k + 1):
            block = kernel[order[b, :t]][:, order[b, :t]]
            torch.testing.assert_close(gains[b, :t].prod(), torch.linalg.det(block), rtol=2e-2, atol=1e-7)


@FEWER
@given(seed=st.integers(0, 10**6))
def test_gains_fall_in_the_order_of_choice_and_end_with_the_features(seed):
    x, r = image(seed, 2, 14, 5)
    gains = select_script(x, None, 14, relevance=r, fusion="released").gains
    assert (gains[:, 1:6] <= gains[:, :5] + 1e-5).all()
    assert (gains[:, 5:] <= 3e-5 * gains[:, :1]).all()  # five channels, five directions


def test_gains_of_zero_vectors_duplicates_and_no_relevance():
    x = torch.tensor([[[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]]])
    assert select_script(x, None, 3, relevance=torch.ones(1, 3)).gains.tolist() == [[1.0, 0.0, 0.0]]
    assert select_script(x, None, 3, relevance=torch.zeros(1, 3)).gains.tolist() == [[0.0, 0.0, 0.0]]
    assert select_script(x[:0], None, 3, relevance=torch.ones(0, 3)).gains.shape == (0, 3)


def test_eps_enters_as_written():
    x = torch.tensor([[[1.0, 0.0], [0.5, 0.75**0.5]]])
    kernel = MatrixKernel(query_kernel(x, torch.ones(1, 2)))
    for eps in (0.0, 1e-3):
        for run in (greedy_on_host, greedy_on_device):
            _, gains = run(kernel, 2, eps, None)
            torch.testing.assert_close(gains, torch.tensor([[1.0, 1 - 0.25 / (1 + eps)]]), rtol=1e-6, atol=0)


def test_permuted_tokens_give_permuted_choices():
    x, r = image(2, 1, 50, 64)
    p = torch.randperm(50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(p[greedy_map_features(x[:, p], r[:, p], 20)], greedy_map_features(x, r, 20))


@pytest.mark.parametrize("scale", [1e-12, 3.7, 1e12])
def test_scale_of_the_kernel_does_not_matter(scale):
    kernel = kernel_tensor(1, n=20, rank=9)
    assert torch.equal(greedy_map(kernel * scale, 20), greedy_map(kernel, 20))


def test_a_batch_is_its_images_one_by_one():
    x, r = image(8, 5, 60, 32)
    together = greedy_map_features(x, r, 30)
    for b in range(5):
        assert torch.equal(greedy_map_features(x[b : b + 1], r[b : b + 1], 30), together[b : b + 1])


class TestDegenerate:
    """Where v² is nothing but rounding, the order is by the diagonal, then by index."""

    def test_identical_tokens_go_in_index_order(self):
        x = torch.randn(1, 1, 300, generator=torch.Generator().manual_seed(1)).expand(2, 50, 300)
        r = torch.ones(2, 50)
        for order in (greedy_map(query_kernel(x, r), 50), greedy_map_features(x, r, 50)):
            assert order.tolist() == [list(range(50))] * 2
        assert greedy_map_features(x, r, 4).tolist() == [[0, 1, 2, 3]] * 2

    def test_duplicates_lose_to_everything_new(self):
        x, _ = image(3, 1, 12, 64)
        x = x.repeat(1, 3, 1)
        order = greedy_map_features(x, torch.ones(1, 36), 36)[0].tolist()
        assert sorted(order[:12]) == list(range(12))  # each token once, its first copy
        assert order[12:] == list(range(12, 36))

    @pytest.mark.parametrize("rank", [1, 2, 5, 16])
    @pytest.mark.parametrize("kind", KINDS)
    def test_beyond_the_rank_relevance_decides(self, rank, kind):
        x, r = image(4, 2, 64, rank)
        order = greedy_map_features(x, r, 64, kind=kind)
        assert torch.equal(greedy_map(query_kernel(x, r, kind=kind), 64), order)
        for b in range(2):
            row = order[b].tolist()
            assert sorted(row) == list(range(64))
            left = sorted(row[rank:], key=lambda i: -r[b, i].item())
            assert row[rank:] == left

    def test_equal_relevance_beyond_the_rank_goes_by_index(self):
        x, _ = image(4, 1, 64, 3)
        order = greedy_map_features(x, torch.ones(1, 64), 64)[0].tolist()
        assert order[0] == 0
        assert order[3:] == sorted(order[3:])

    def test_no_relevance_at_all(self):
        x, r = image(4, 1, 9, 3)
        assert greedy_map_features(x, r * 0, 9).tolist() == [list(range(9))]
        assert greedy_map(torch.zeros(1, 9, 9), 9).tolist() == [list(range(9))]
        assert greedy_map(torch.zeros(1, 9, 9), 9, eps=0.0).tolist() == [list(range(9))]

    def test_zero_vectors_come_last(self):
        x, r = image(4, 1, 10, 20)
        x[0, [2, 5]] = 0
        r[0, 2] = r[0, 5] = 1
        assert greedy_map_features(x, r, 10)[0, 8:].tolist() == [2, 5]

    def test_irrelevant_candidates_do_not_blunt_the_rest(self):
        x, r = image(6, 1, 17, 40)
        x, r = torch.cat([x, x[:, 5:]], 1), torch.cat([r, r[:, 5:]], 1)  # the others come twice
        r[0, :5] = 0
        candidates = torch.tensor([[4, 2, 0, 1, 3]])
        for order in (
            greedy_map_features(x, r, 29, candidates=candidates),
            greedy_map(query_kernel(x, r), 29, candidates=candidates),
        ):
            assert order[0, :5].tolist() == [0, 1, 2, 3, 4]
            assert (order[0, 5:] - 5).tolist() == greedy_map_features(x[:, 5:], r[:, 5:], 24)[0].tolist()

    def test_tied_candidates_go_by_index_however_they_are_listed(self):
        x, r = torch.ones(1, 6, 3), torch.ones(1, 6)
        for k, want in [(2, [0, 2]), (3, [0, 2, 4]), (5, [0, 2, 4, 1, 3])]:
            assert greedy_map_features(x, r, k, candidates=torch.tensor([[4, 0, 2]])).tolist() == [want]

    def test_rounding_noise_on_the_kernel_changes_nothing(self):
        x, r = image(7, 1, 40, 10)
        x = torch.cat([x, x.flip(1)], 1)
        r = torch.cat([r, r.flip(1)], 1)
        kernel = query_kernel(x, r)
        want = greedy_map(kernel, 80)
        for seed in range(20):
            noise = 1e-7 * torch.randn(1, 80, 80, generator=torch.Generator().manual_seed(seed))
            assert torch.equal(greedy_map(kernel + noise * kernel, 80), want)

    def test_one_token(self):
        assert greedy_map(torch.ones(3, 1, 1), 1).tolist() == [[0]] * 3
        assert greedy_map_features(torch.ones(1, 1, 4), torch.zeros(1, 1), 1).tolist() == [[0]]

    def test_an_empty_batch_stays_empty(self):
        x, r = image(0, 0, 6, 4)
        assert query_kernel(x, r).shape == (0, 6, 6)
        assert greedy_map(query_kernel(x, r), 3).shape == (0, 3)
        assert greedy_map_features(x, r, 1, candidates=torch.empty(0, 2, dtype=torch.int64)).shape == (0, 1)


def test_greedy_is_not_always_the_best_set():
    """What the greedy cannot promise: here the best pair leaves out the best token."""
    kernel = torch.tensor([[[1.0, 0.7, 0.7], [0.7, 0.99, 0.0], [0.7, 0.0, 0.99]]])
    best = max(itertools.combinations(range(3), 2), key=lambda s: reference.det(kernel[0], list(s)))
    assert best == (1, 2)
    assert greedy_map(kernel, 2).tolist() == [[0, 1]]


def good():
    x, r = image(0, 2, 5, 4)
    return {"features": x, "relevance": r, "k": 3}


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"k": 6}, ValueError, "k=6: must be from 1 to 5, the number of tokens"),
        ({"k": 0}, ValueError, "k=0: must be from 1 to 5, the number of tokens"),
        ({"k": 2.5}, TypeError, "k=2.5: must be an int"),
        ({"k": True}, TypeError, "k=True: must be an int"),
        ({"kind": "S"}, ValueError, "kind='S': choose from 's_prime', 's'"),
        ({"eps": -1e-6}, ValueError, "eps=-1e-06: a number, from 0 to 0.001"),
        ({"eps": float("nan")}, ValueError, "eps=nan: a number, from 0 to 0.001"),
        ({"features": torch.zeros(5, 4)}, ValueError, r"features of shape \(5, 4\): must be \(B, n, d\)"),
        (
            {"features": torch.zeros(2, 5, 0)},
            ValueError,
            r"features of shape \(2, 5, 0\): must have at least one channel",
        ),
        (
            {"features": torch.zeros(2, 5, 4).int()},
            TypeError,
            "features of dtype torch.int32: must be a floating-point tensor",
        ),
        (
            {"features": np.zeros((2, 5, 4))},
            TypeError,
            "features of type ndarray: must be a floating-point tensor",
        ),
        ({"relevance": torch.ones(2, 4)}, ValueError, r"relevance of shape \(2, 4\): must be \(B, n\) with B=2, n=5"),
        (
            {"relevance": -torch.eye(5)[:2]},
            ValueError,
            "relevance=-1.0 at batch 0, token 0: must not be negative",
        ),
        (
            {"candidates": torch.tensor([[0, 5], [0, 1]])},
            ValueError,
            "candidates=5 at batch 0: must be from 0 to 4",
        ),
        ({"candidates": torch.tensor([[0, 1], [-1, 1]])}, ValueError, "candidates=-1 at batch 1: must be from 0 to 4"),
        (
            {"candidates": torch.tensor([[0, 1], [3, 3]])},
            ValueError,
            "candidates=3 twice at batch 1: must be distinct",
        ),
        (
            {"candidates": torch.ones(2, 2)},
            TypeError,
            "candidates of dtype torch.float32: must be an int64 tensor",
        ),
        (
            {"candidates": torch.tensor([[0, 1]])},
            ValueError,
            r"candidates of shape \(1, 2\): must be \(B, c\) with B=2",
        ),
    ],
)
def test_wrong_arguments(change, error, words):
    with pytest.raises(error, match=words) as caught:
        greedy_map_features(**(good() | change))
    assert str(caught.value).count(".") >= 1
    assert "\n" not in str(caught.value)


def test_values_that_are_not_finite_are_pointed_at():
    arguments = good()
    arguments["features"][1, 3, 2] = torch.nan
    with pytest.raises(ValueError, match=r"features=nan at batch 1, token 3, channel 2: must be finite in float32\."):
        greedy_map_features(**arguments)
    arguments = good()
    arguments["relevance"][0, 4] = torch.inf
    with pytest.raises(ValueError, match=r"relevance=inf at batch 0, token 4: must be finite in float32\."):
        query_kernel(arguments["features"], arguments["relevance"])
    kernel = torch.ones(2, 3, 3)
    kernel[1, 0, 2] = -torch.inf
    with pytest.raises(ValueError, match=r"kernel=-inf at batch 1, row 0, column 2: must be finite in float32\."):
        greedy_map(kernel, 2)
    with pytest.raises(ValueError, match=r"kernel of shape \(2, 3, 4\): must be \(B, n, n\)"):
        greedy_map(torch.ones(2, 3, 4), 2)

"""The statements of the paper's appendix on diversity, on small kernels, by exhaustive search."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.support import selection_reference as reference
from vlprune.selection import greedy_map, greedy_map_features, query_kernel

EXACT = settings(derandomize=True, deadline=None, max_examples=60)
SEEDS = st.integers(0, 10**6)


def gram(seed, k, d):
    """Our kernel with every token equally relevant: the Gram matrix of the unit vectors."""
    x = torch.tensor(reference.correlated_units(seed, k, d)).float()[None]
    return query_kernel(x, torch.ones(1, k))[0].double().numpy()


def off_diagonal(kernel):
    return kernel[~np.eye(len(kernel), dtype=bool)]


def equicorrelation(k, rho):
    return (1 - rho) * np.eye(k) + rho * np.ones((k, k))


def envelope(k, rho):
    return (1 + (k - 1) * rho) * (1 - rho) ** (k - 1)


@EXACT
@given(seed=SEEDS, k=st.integers(1, 7), d=st.integers(1, 9))
def test_determinant_is_squared_volume(seed, k, d):
    kernel = gram(seed, k, d)
    singular = np.linalg.svd(reference.correlated_units(seed, k, d), compute_uv=False)
    volume = float(np.prod(singular)) if k <= d else 0.0
    assert np.linalg.det(kernel) == pytest.approx(volume**2, abs=2e-6)


@EXACT
@given(seed=SEEDS, k=st.integers(2, 7), d=st.integers(2, 9))
def test_hadamard(seed, k, d):
    kernel = gram(seed, k, d)
    assert np.linalg.det(kernel) <= 1 + 1e-6
    correlated = np.abs(off_diagonal(kernel)).max() > 1e-2
    assert not correlated or np.linalg.det(kernel) < 1 - 1e-5  # equality needs orthogonal tokens
    assert k <= d or np.linalg.det(kernel) < 1e-5


def test_hadamard_is_reached_by_orthogonal_tokens():
    assert np.linalg.det(query_kernel(torch.eye(6)[None], torch.ones(1, 6))[0].numpy()) == 1.0


@EXACT
@given(seed=SEEDS, k=st.integers(2, 6), spread=st.floats(0.0, 0.3))
def test_gershgorin(seed, k, spread):
    noise = np.random.default_rng(seed).normal(size=(k, 12))
    x = np.eye(k, 12) + spread * noise
    kernel = query_kernel(torch.tensor(x)[None], torch.ones(1, k))[0].double().numpy()
    bound = 1 - (k - 1) * np.abs(off_diagonal(kernel)).max()
    assert np.linalg.eigvalsh(kernel)[0] >= bound - 1e-5
    assert np.linalg.det(kernel) >= max(bound, 0.0) ** k - 1e-5


def test_gershgorin_is_reached():
    kernel = equicorrelation(4, -0.2)  # the smallest eigenvalue is 1 + 3·(−0.2)
    assert np.linalg.eigvalsh(kernel)[0] == pytest.approx(1 - 3 * 0.2)


@EXACT
@given(seed=SEEDS, k=st.integers(2, 7), d=st.integers(2, 10))
def test_equicorrelation_envelope(seed, k, d):
    kernel = gram(seed, k, d)
    rho = off_diagonal(kernel).mean()
    assert np.linalg.det(kernel) <= envelope(k, rho) + 2e-6
    assert envelope(k, rho) <= 1 + 1e-6


@EXACT
@given(k=st.integers(2, 8), rho=st.floats(0.0, 0.95))
def test_equicorrelation_reaches_its_envelope(k, rho):
    tokens = np.linalg.cholesky(equicorrelation(k, rho) + 1e-12 * np.eye(k))
    kernel = query_kernel(torch.tensor(tokens)[None], torch.ones(1, k))[0].double().numpy()
    assert np.linalg.det(kernel) == pytest.approx(envelope(k, rho), abs=2e-6)


@EXACT
@given(seed=SEEDS, n=st.integers(2, 8), rank=st.integers(1, 8), data=st.data())
def test_greedy_on_the_regularised_objective(seed, n, rank, data):
    """log det(I + L) is monotone and submodular, so its greedy is within 1 − 1/e of the best set."""
    k = data.draw(st.integers(1, n))
    kernel = 3.0 * reference.random_kernel(seed, n, rank)
    regular = np.eye(n) + kernel
    order = greedy_map(torch.tensor(regular)[None], k)[0].tolist()
    assert order == reference.greedy(regular, k)  # it is the greedy of that objective
    got = math.log(reference.det(regular, order))
    best = max(math.log(reference.det(regular, list(s))) for s in itertools.combinations(range(n), k))
    assert got >= (1 - 1 / math.e) * best - 1e-9
    assert reference.det(regular, order) >= math.exp(best) ** (1 - 1 / math.e) - 1e-9


@EXACT
@given(seed=SEEDS, n=st.integers(2, 7), rank=st.integers(1, 7))
def test_regularised_objective_is_monotone_and_submodular(seed, n, rank):
    regular = np.eye(n) + reference.random_kernel(seed, n, rank)
    for small in itertools.chain([()], itertools.combinations(range(n), 1), itertools.combinations(range(n), 2)):
        for extra, new in itertools.permutations([i for i in range(n) if i not in small], 2):
            large = (*small, extra)
            early = reference.det(regular, [*small, new]) / (reference.det(regular, list(small)) if small else 1)
            late = reference.det(regular, [*large, new]) / reference.det(regular, list(large))
            assert 1 - 1e-9 <= late <= early * (1 + 1e-9)


def test_the_guarantee_is_not_for_the_plain_determinant():
    """Script maximises det(L), whose logarithm shrinks as tokens come: the factor 1 − 1/e does not hold."""
    a, t = 0.999, 0.71
    x = np.array([[1.0, 0.0, 0.0], [t, math.sqrt(1 - t * t), 0.0], [t, -math.sqrt(1 - t * t), 0.0]])
    relevance = np.array([1.0, a, a])
    kernel = relevance[:, None] * (x @ x.T) * relevance[None]
    order = greedy_map_features(torch.tensor(x)[None], torch.tensor(relevance)[None], 2)[0].tolist()
    best = max(reference.det(kernel, list(s)) for s in itertools.combinations(range(3), 2))
    got = reference.det(kernel, order)
    assert 0 < got < best < 1
    assert math.log(got) < math.log(best) / (1 - 1 / math.e)  # worse than the factor would allow


def test_map_need_not_minimise_redundancy():
    """Two opposite-leaning tokens are less similar than two orthogonal ones, yet span less."""
    half = math.sqrt(3) / 2
    x = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [half, -0.5]]])  # cosines 0, 0.87 and −0.5
    kernel = query_kernel(x, torch.ones(1, 3))[0].double().numpy()
    pairs = list(itertools.combinations(range(3), 2))
    widest = max(pairs, key=lambda s: reference.det(kernel, list(s)))
    least = min(pairs, key=lambda s: kernel[s])
    assert widest == (0, 1)
    assert least == (1, 2)
    assert tuple(greedy_map(torch.tensor(kernel)[None], 2)[0].tolist()) == widest


@EXACT
@given(k=st.integers(2, 8), low=st.floats(0.0, 0.9), step=st.floats(0.02, 0.09))
def test_more_equicorrelation_is_less_volume(k, low, step):
    assert envelope(k, low) > envelope(k, low + step)


@EXACT
@given(seed=SEEDS, n=st.integers(2, 7))
def test_equivalence_for_pairs_that_are_not_opposed(seed, n):
    """For k = 2 every subset is equicorrelated: with cosines ≥ 0 the widest pair is the least similar."""
    x = np.abs(np.random.default_rng(seed).normal(size=(n, 4)))
    kernel = query_kernel(torch.tensor(x)[None], torch.ones(1, n))[0].double().numpy()
    pairs = list(itertools.combinations(range(n), 2))
    cosines = sorted(kernel[s] for s in pairs)
    assume(len(cosines) < 2 or cosines[1] - cosines[0] > 1e-3)
    assert max(pairs, key=lambda s: reference.det(kernel, list(s))) == min(pairs, key=lambda s: kernel[s])


@pytest.mark.parametrize("groups", [[0.8, 0.1, 0.5], [0.3, 0.6, 0.05]])
def test_equivalence_for_equicorrelated_groups(groups):
    """Groups of k tokens, each with one cosine: the widest group is the least similar on every measure."""
    k = 4
    dets = [np.linalg.det(equicorrelation(k, rho)) for rho in groups]
    assert dets.index(max(dets)) == groups.index(min(groups))
    assert dets == pytest.approx([envelope(k, rho) for rho in groups])


def test_equicorrelation_of_all_larger_subsets_leaves_nothing_to_choose():
    """For 3 ≤ k < n subsets overlap in pairs, so one cosine holds for all: every subset is equally wide."""
    n, k = 6, 3
    kernel = equicorrelation(n, 0.4)
    dets = [reference.det(kernel, list(s)) for s in itertools.combinations(range(n), k)]
    assert max(dets) == pytest.approx(min(dets))
    assert greedy_map(torch.tensor(kernel)[None], k).tolist() == [[0, 1, 2]]  # ties to the lower index


def test_real_choices_are_not_equicorrelated():
    """With relevance the widest set need not be the least redundant: the paper's last claim is no theorem."""
    x = torch.tensor([[[1.0, 0.0, 0.0], [0.8, 0.6, 0.0], [0.0, 0.0, 1.0]]])
    relevance = torch.tensor([[1.0, 1.0, 0.3]])
    kernel = query_kernel(x, relevance)[0].double().numpy()
    cosine = query_kernel(x, torch.ones(1, 3))[0].double().numpy()
    pairs = list(itertools.combinations(range(3), 2))
    assert max(pairs, key=lambda s: reference.det(kernel, list(s))) == (0, 1)
    assert min(pairs, key=lambda s: cosine[s]) != (0, 1)
    assert cosine[0, 1] == pytest.approx(0.8)

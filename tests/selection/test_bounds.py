"""The statements of the paper on relevance and diversity, on small kernels, by exhaustive search."""

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


# --- the main text: relevance and diversity in one determinant ---


def elementary_symmetric(values, k):
    """The sum of the products of all k of the values, by its recurrence."""
    sums = np.zeros(k + 1)
    sums[0] = 1.0
    for value in values:
        for i in range(k, 0, -1):
            sums[i] += value * sums[i - 1]
    return sums[k]


def relevant_tokens(seed, n, d):
    """Unit vectors (n, d) and relevances (n,) in [0.2, 1], as float64."""
    relevance = np.random.default_rng(seed + 1).uniform(0.2, 1.0, n)
    return reference.correlated_units(seed, n, d), relevance


@EXACT
@given(seed=SEEDS, n=st.integers(1, 7), d=st.integers(1, 9), data=st.data())
def test_determinant_is_relevance_times_diversity(seed, n, d, data):
    """det L̃_S = ∏ r² · det S'_S, and det L_S = ∏ r · det S_S with the square roots (Eq. 7)."""
    chosen = data.draw(st.lists(st.integers(0, n - 1), min_size=1, unique=True))
    x, r = relevant_tokens(seed, n, d)
    diversity = reference.det(x @ x.T, chosen)
    for kind, power in (("s_prime", 2), ("s", 1)):
        kernel = query_kernel(torch.tensor(x)[None], torch.tensor(r)[None], kind=kind)[0].double().numpy()
        wanted = float(np.prod(r[chosen] ** power)) * diversity
        assert reference.det(kernel, chosen) == pytest.approx(wanted, abs=3e-6)
        assert np.linalg.eigvalsh(kernel)[0] >= -1e-6  # the congruence keeps it positive semi-definite


@EXACT
@given(seed=SEEDS, n=st.integers(2, 7), data=st.data())
def test_orthogonal_tokens_are_chosen_by_relevance_alone(seed, n, data):
    """With S = I the volume is the product of relevances: the widest set, and the greedy's, is the most relevant."""
    k = data.draw(st.integers(1, n))
    r = np.random.default_rng(seed).permutation(np.linspace(0.2, 1.0, n))
    x, _ = np.linalg.qr(np.random.default_rng(seed).normal(size=(n, n)))
    kernel = query_kernel(torch.tensor(x)[None], torch.tensor(r)[None])[0].double().numpy()
    most = sorted(range(n), key=lambda i: -r[i])[:k]
    assert reference.det(kernel, most) == pytest.approx(float(np.prod(r[most] ** 2)), rel=1e-4)
    widest = max(itertools.combinations(range(n), k), key=lambda s: reference.det(kernel, list(s)))
    assert set(widest) == set(most)
    assert greedy_map_features(torch.tensor(x)[None], torch.tensor(r)[None], k)[0].tolist() == most


@EXACT
@given(seed=SEEDS, n=st.integers(1, 7), d=st.integers(1, 9), data=st.data())
def test_normaliser_of_the_k_dpp(seed, n, d, data):
    """The determinants of all k-subsets sum to the k-th elementary symmetric polynomial of the eigenvalues."""
    k = data.draw(st.integers(1, n))
    x, r = relevant_tokens(seed, n, d)
    kernel = query_kernel(torch.tensor(x)[None], torch.tensor(r)[None])[0].double().numpy()
    subsets = [list(s) for s in itertools.combinations(range(n), k)]
    dets = np.array([reference.det(kernel, s) for s in subsets])
    total = elementary_symmetric(np.linalg.eigvalsh(kernel), k)
    assert dets.sum() == pytest.approx(total, abs=1e-9)
    assert dets.min() >= -1e-6
    assume(total > 1e-3)
    probability = dets / total
    assert probability.sum() == pytest.approx(1.0)
    # the most probable set is the widest one
    assert probability.max() == pytest.approx(max(reference.det(kernel, s) for s in subsets) / total)


# --- the appendix: average similarity below 0 ---


@EXACT
@given(seed=SEEDS, k=st.integers(2, 7), d=st.integers(2, 9))
def test_mean_cosine_is_never_below_its_end(seed, k, d):
    """|Σ v|² ≥ 0, so k unit vectors cannot be less alike on average than −1/(k − 1)."""
    x = np.random.default_rng(seed).normal(size=(k, d))
    kernel = query_kernel(torch.tensor(x - x.mean(0))[None], torch.ones(1, k))[0].double().numpy()
    assert off_diagonal(kernel).mean() >= -1 / (k - 1) - 1e-6
    assert np.linalg.det(kernel) <= envelope(k, off_diagonal(kernel).mean()) + 2e-6


@EXACT
@given(k=st.integers(2, 8), share=st.floats(0.0, 1.0))
def test_envelope_is_reached_down_to_its_end(k, share):
    """By equicorrelated tokens, from ρ = −1/(k − 1), the simplex, up to 0."""
    rho = -share / (k - 1)
    values, vectors = np.linalg.eigh(equicorrelation(k, rho))
    tokens = vectors * np.sqrt(values.clip(min=0))
    kernel = query_kernel(torch.tensor(tokens)[None], torch.ones(1, k))[0].double().numpy()
    assert off_diagonal(kernel) == pytest.approx(rho, abs=1e-5)
    assert np.linalg.det(kernel) == pytest.approx(envelope(k, rho), abs=5e-6)


@EXACT
@given(k=st.integers(2, 8), share=st.floats(0.0, 0.9))
def test_below_zero_the_envelope_rises(k, share):
    """So with opposed tokens the widest set is not the least similar one: the equivalence needs ρ ≥ 0."""
    low, high = -1 / (k - 1), 0.0
    assert envelope(k, low) == pytest.approx(0.0, abs=1e-12)
    rho = low + share * (high - low)
    assert envelope(k, rho) < envelope(k, rho + 0.05 * (high - low)) <= 1.0


@EXACT
@given(seed=SEEDS, k=st.integers(2, 6), d=st.integers(2, 8))
def test_the_envelope_s_proof(seed, k, d):
    """The mean over all orders of the tokens is the equicorrelated kernel, and log det is concave on the way there."""
    kernel = gram(seed, k, d)
    orders = [list(order) for order in itertools.permutations(range(k))]
    mean = np.mean([kernel[np.ix_(order, order)] for order in orders], axis=0)
    assert mean == pytest.approx(equicorrelation(k, off_diagonal(kernel).mean()), abs=1e-6)
    assume(np.linalg.det(kernel) > 1e-4)
    half = np.linalg.slogdet((kernel + mean) / 2)[1]
    assert half >= (np.linalg.slogdet(kernel)[1] + np.linalg.slogdet(mean)[1]) / 2 - 1e-9


@EXACT
@given(seed=SEEDS, k=st.integers(1, 7), d=st.integers(1, 9))
def test_arithmetic_and_geometric_mean(seed, k, d):
    """det L ≤ (tr L / k)^k, which is 1 for unit vectors, and for relevant ones (Σ r² / k)^k."""
    x, r = relevant_tokens(seed, k, d)
    for weights in (np.ones(k), r):
        kernel = query_kernel(torch.tensor(x)[None], torch.tensor(weights)[None])[0].double().numpy()
        assert np.trace(kernel) == pytest.approx(float((weights**2).sum()), rel=1e-5)
        assert np.linalg.det(kernel) <= float((weights**2).mean()) ** k + 1e-6
        assert np.linalg.det(kernel) <= float(np.prod(weights**2)) + 1e-6  # Hadamard's, with relevance

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import selection_reference as reference
from vlprune.selection import graph_keep, graph_scores, graph_threshold, select_script

EXACT = settings(derandomize=True, deadline=None, max_examples=40)
GRAPHS = ["bipartite", "full", "random"]
BIN = 2 / 1024


def tokens(seed, B, n, d):
    """Tokens with a common part, so that some edges pass tau and some do not."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, n, d, generator=g) + 0.6 * torch.randn(B, 1, d, generator=g)


def random_half(n):
    return torch.randperm(n, generator=torch.Generator().manual_seed(0))[: (n + 1) // 2].tolist()


@pytest.mark.parametrize("graph", GRAPHS)
@EXACT
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 13),
    d=st.integers(2, 6),
    tau=st.sampled_from([-1.0, 0.0, 0.3, 0.9]),
    gamma=st.sampled_from([0.0, 1.0, 5.0]),
)
def test_scores_match_the_reference(graph, seed, n, d, tau, gamma):
    x = tokens(seed, 2, n, d)
    got = graph_scores(x, tau=tau, gamma=gamma, graph=graph)
    for b in range(2):
        want = reference.graph_scores(x[b].double().tolist(), tau, gamma, graph, random_half(n))
        torch.testing.assert_close(got[b].double(), torch.tensor(want).double(), rtol=1e-4, atol=1e-5)


def test_an_isolated_token_scores_its_mean_similarity():
    x = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.6, 0.8]]])
    scores = graph_scores(x, tau=0.95, gamma=5.0)  # nobody has an edge
    torch.testing.assert_close(scores, torch.tensor([[0.3, 0.0, 0.3, 0.6]]))


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("held", [1, 40, 200])
def test_a_few_cosines_at_a_time(graph, held, monkeypatch):
    x = tokens(3, 2, 33, 5)
    at_once = graph_scores(x, graph=graph)
    monkeypatch.setattr("vlprune.selection.graph.HELD", held)
    torch.testing.assert_close(graph_scores(x, graph=graph), at_once, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("graph", GRAPHS)
def test_one_token_meets_nobody(graph):
    assert graph_scores(torch.ones(2, 1, 3), graph=graph).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("tau", [1.0, 0.5, 0.0])
def test_a_cosine_equal_to_tau_is_an_edge(tau):
    angle = torch.acos(torch.tensor(tau, dtype=torch.float64))
    pair = torch.tensor([[[0.3, 0.0], [0.7 * torch.cos(angle), 0.7 * torch.sin(angle)]]])
    torch.testing.assert_close(graph_scores(pair, tau=tau), torch.ones(1, 2))


def test_a_cosine_equal_to_tau_is_an_edge_whatever_the_rounding():
    x = torch.randn(200, 1, 300, generator=torch.Generator().manual_seed(0))
    scores = graph_scores(torch.cat([x, 0.7 * x, 3 * x, x], 1), tau=1.0)  # some cosines round to below 1
    torch.testing.assert_close(scores, torch.full((200, 4), 2.0))
    assert graph_scores(torch.tensor([[[1.0, 0.0], [1.0, 3e-3]]]), tau=1.0).max() < 1  # 4.5e-6 below is not


def test_zero_vectors_are_similar_to_nothing():
    x = torch.zeros(1, 5, 3)
    assert graph_scores(x).tolist() == [[0.0] * 5]
    assert graph_scores(x, tau=0.0, gamma=0.0).tolist() == [[2.0, 3.0, 2.0, 3.0, 2.0]]


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(2, 20))
def test_permutations(seed, n):
    x = tokens(seed, 1, n, 5)
    p = torch.randperm(n, generator=torch.Generator().manual_seed(seed))
    torch.testing.assert_close(graph_scores(x[:, p], graph="full"), graph_scores(x, graph="full")[:, p])
    q = reference.parity_permutation(seed, n)
    torch.testing.assert_close(graph_scores(x[:, q]), graph_scores(x)[:, q])


def test_bipartite_depends_on_who_sits_where():
    x = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]])
    assert graph_scores(x, gamma=0.0).tolist() == [[1.0, 1.0, 1.0, 1.0]]
    assert graph_scores(x[:, [0, 2, 1, 3]], gamma=0.0).tolist() == [[0.0, 0.0, 0.0, 0.0]]


def test_the_random_split_is_fixed_and_differs_from_the_bipartite_one():
    x = tokens(3, 4, 40, 6)
    state = torch.random.get_rng_state()
    first = graph_scores(x, graph="random")
    assert torch.equal(torch.random.get_rng_state(), state)  # the user's random numbers are left alone
    torch.manual_seed(99)
    torch.testing.assert_close(graph_scores(x, graph="random"), first)
    torch.testing.assert_close(graph_scores(x[2:3], graph="random"), first[2:3])
    assert not torch.allclose(first, graph_scores(x))


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 30), data=st.data())
def test_keep_takes_the_least_redundant(seed, n, data):
    keep = data.draw(st.integers(1, n))
    g = torch.Generator().manual_seed(seed)
    scores = torch.randint(-3, 6, (3, n), generator=g).float() * 10  # many exact ties
    noisy = scores * (1 + 2e-7 * torch.randn(3, n, generator=g))  # and rounding on top
    for values in (scores, noisy):
        got = graph_keep(values, keep)
        assert got.tolist() == [reference.graph_keep(s, keep) for s in scores.tolist()]


def test_keep_sees_differences_above_the_tolerance():
    assert graph_keep(torch.tensor([[1.0 + 1e-5, 1.0]]), 1).tolist() == [[1]]
    assert graph_keep(torch.tensor([[1.0 + 5e-7, 1.0]]), 1).tolist() == [[0]]
    assert graph_keep(torch.tensor([[0.01 + 1e-5, 0.01]]), 1).tolist() == [[1]]
    assert graph_keep(torch.tensor([[0.01 + 1e-6, 0.01]]), 1).tolist() == [[0]]


def test_duplicates_tie_to_the_lower_index():
    x = tokens(7, 1, 8, 16).repeat(1, 2, 1)
    scores = graph_scores(x, graph="full", gamma=50.0)
    torch.testing.assert_close(scores[:, :8], scores[:, 8:], rtol=2e-6, atol=0)
    kept = graph_keep(scores, 15)[0].tolist()
    assert max(set(range(16)) - set(kept)) >= 8  # of the most redundant pair the second goes


def test_large_gamma_of_the_paper_stays_finite():
    scores = graph_scores(torch.ones(1, 576, 4), tau=0.3, gamma=100.0)
    assert scores.isfinite().all()
    assert scores.min() > 1e30


# --- thresholds from an image's own similarities, against slow loops over all pairs in float64 ---


def meetings(x, graph):
    """The cosines of all pairs that meet, of one image (n, d)."""
    unit = torch.nn.functional.normalize(x.double(), dim=-1)
    n = len(x)
    order = list(range(n))
    if graph == "random":
        order = torch.randperm(n, generator=torch.Generator().manual_seed(0)).tolist()
        half = (n + 1) // 2
        pairs = [(i, j) for i in order[:half] for j in order[half:]]
    elif graph == "full":
        pairs = [(i, j) for i in order for j in order if i != j]
    else:
        pairs = [(i, j) for i in order[::2] for j in order[1::2]]
    return [float(unit[i] @ unit[j]) for i, j in pairs]


def between(values, border):
    low, high = [v for v in values if v < border], [v for v in values if v >= border]
    if not low or not high:
        return 0.0
    apart = sum(low) / len(low) - sum(high) / len(high)
    return len(low) * len(high) * apart**2 / len(values) ** 2


@pytest.mark.parametrize("graph", GRAPHS)
@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(3, 24))
def test_otsu_parts_the_pairs_as_well_as_any_border(graph, seed, n):
    x = tokens(seed, 1, n, 6)
    values = meetings(x[0], graph)
    best = max(between(values, v) for v in values)
    found = between(values, float(graph_threshold(x, "otsu", graph=graph)))
    assert found >= best - 4 * BIN  # bins hide the pairs' exact places


@pytest.mark.parametrize("graph", GRAPHS)
@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(3, 24))
def test_a_quarter_of_the_pairs_lies_above_the_quantile(graph, seed, n):
    x = tokens(seed, 1, n, 6)
    values = meetings(x[0], graph)
    border = float(graph_threshold(x, "quantile", graph=graph))
    assert sum(v >= border + 1e-5 for v in values) <= 0.25 * len(values)
    assert sum(v >= border - BIN - 1e-5 for v in values) >= 0.25 * len(values)


@pytest.mark.parametrize("rule", ["otsu", "quantile"])
def test_each_image_has_its_own_threshold(rule):
    x = torch.cat([tokens(1, 1, 30, 6), tokens(2, 1, 30, 6)])
    both = graph_threshold(x, rule)
    assert both.tolist() == [float(graph_threshold(x[i : i + 1], rule)) for i in range(2)]
    scores = graph_scores(x, tau=rule)
    for i in range(2):
        alone = graph_scores(x[i : i + 1], tau=float(both[i]))
        assert torch.equal(scores[i : i + 1], alone)


@pytest.mark.parametrize("rule", ["otsu", "quantile"])
def test_thresholds_of_tokens_that_are_all_the_same_or_alone(rule):
    assert -1 <= float(graph_threshold(torch.ones(1, 9, 3), rule)) <= 1
    assert graph_threshold(torch.ones(1, 1, 3), rule).tolist() == [1.0]
    assert graph_threshold(torch.ones(0, 9, 3), rule).shape == (0,)
    assert graph_scores(torch.ones(0, 9, 3), tau=rule).shape == (0, 9)
    assert graph_scores(torch.zeros(1, 9, 3), tau=rule).isfinite().all()


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_threshold_from_a_few_cosines_at_a_time(graph, monkeypatch):
    x = tokens(5, 2, 40, 6)
    at_once = graph_threshold(x, "otsu", graph=graph)
    monkeypatch.setattr("vlprune.selection.graph.HELD", 50)
    assert torch.equal(graph_threshold(x, "otsu", graph=graph), at_once)


@pytest.mark.parametrize("fusion", ["supplement", "filter", "released"])
def test_thresholds_in_script(fusion):
    x, question = tokens(3, 1, 40, 6), torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(0))
    own = float(graph_threshold(x, "otsu"))
    got = select_script(x, question, 8, tau="otsu", fusion=fusion)
    want = select_script(x, question, 8, tau=own, fusion=fusion)
    assert torch.equal(got.kept, want.kept)
    torch.testing.assert_close(got.redundancy, want.redundancy)


def test_unknown_thresholds_are_refused():
    with pytest.raises(ValueError, match="tau='median': a cosine from -1 to 1, or 'otsu' or 'quantile'"):
        graph_scores(torch.ones(1, 2, 3), tau="median")
    with pytest.raises(ValueError, match="rule"):
        graph_threshold(torch.ones(1, 2, 3), "median")

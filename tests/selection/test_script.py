import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import selection_reference as reference
from vlprune.selection import (
    fuse,
    graph_keep,
    graph_scores,
    greedy_map,
    greedy_map_features,
    query_kernel,
    relevance_scores,
    select_script,
)
from vlprune.types import Selection

EXACT = settings(derandomize=True, deadline=None, max_examples=40)
RULES = ["released", "supplement", "filter"]


def image(seed, B=2, n=40, d=48, lq=5):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(B, n, d, generator=g) + 0.5 * torch.randn(B, 1, d, generator=g)
    return x, torch.randn(B, lq, d, generator=g)


@pytest.mark.parametrize("rule", RULES)
@EXACT
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(1, 16),
    kind=st.sampled_from(["s_prime", "s"]),
    rho=st.sampled_from([0.1, 0.5, 1.0]),
    sign=st.sampled_from([1, -1]),
    data=st.data(),
)
def test_script_from_its_references(rule, seed, n, kind, rho, sign, data):
    m = data.draw(st.integers(1, n))
    x, q = image(seed, B=2, n=n, d=24)
    got = select_script(x, q, m, fusion=rule, kernel=kind, rho=rho, sign=sign)
    for b in range(2):
        tokens = x[b].double().tolist()
        scores = reference.graph_scores(tokens)
        relevance = reference.relevance_scores(tokens, q[b].double().tolist(), sign=sign)
        keep = max(m, int(rho * n + 0.5)) if rule == "filter" else m
        survivors = reference.graph_keep(scores, keep)
        if rule == "released":
            assert got.redundancy is None
        else:
            torch.testing.assert_close(got.redundancy[b].double(), torch.tensor(scores).double(), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(got.relevance[b].double(), torch.tensor(relevance).double(), rtol=0, atol=1e-4)
        kernel = reference.query_kernel(tokens, relevance, kind)
        order = reference.greedy(kernel, n, set(survivors) if rule == "filter" else None)
        length = {"released": m, "supplement": min(2 * m, n), "filter": m}[rule]
        assert got.order.shape == got.gains.shape == (2, length)
        assert got.kept.shape == (2, m)
        found, row = got.order[b].tolist(), got.kept[b].tolist()
        if rule == "supplement":
            length -= found.count(-1)
            assert found == reference.stopped(found, survivors, m)
        assert row == sorted(set(row))
        assert row == reference.fuse(found[:length], survivors, m, rule)
        dets = [reference.det(kernel, order[:t]) for t in range(length + 1)]  # the empty set's is 1
        sound = 0
        while sound < length and dets[sound + 1] > 1e-4 * dets[sound]:  # below, v² is close to its rounding
            sound += 1
        assert sound >= min(length, n // 2) or rule == "filter"
        assert found[:sound] == order[:sound]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("graph", ["bipartite", "full", "random"])
@pytest.mark.parametrize("kind", ["s_prime", "s"])
def test_script_is_the_parts_put_together(rule, graph, kind):
    x, q = image(1, B=3, n=61, d=64)
    m, keep = 9, 24 if rule == "filter" else 9
    got = select_script(x, q, m, tau=0.2, gamma=3.0, graph=graph, kernel=kind, fusion=rule, rho=0.4, sign=-1)
    scores, relevance = graph_scores(x, tau=0.2, gamma=3.0, graph=graph), relevance_scores(x, q, sign=-1)
    survivors = graph_keep(scores, keep)
    order = greedy_map(query_kernel(x, relevance, kind=kind), 61, candidates=survivors if rule == "filter" else None)
    assert torch.equal(got.kept, fuse(order, survivors, m, rule=rule))
    whole = order[:, : got.order.shape[1]].tolist()
    if rule == "supplement":
        whole = [reference.stopped(row, kept, m) for row, kept in zip(whole, survivors.tolist())]
    assert got.order.tolist() == whole
    if rule != "released":
        torch.testing.assert_close(got.redundancy, scores)
    assert torch.equal(got.relevance, relevance)
    assert got.embeddings is None


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 20), d=st.sampled_from([1, 3, 24]), data=st.data())
def test_supplement_stops_the_greedy_when_it_has_enough(seed, n, d, data):
    """Also among duplicates, beyond the rank, and where the graph's border runs through ties."""
    m = data.draw(st.integers(1, n))
    x, q = image(seed, B=3, n=n, d=d)
    copies = data.draw(st.integers(0, n // 2))
    x[:, n - copies :] = x[:, :copies].clone()
    levels = data.draw(st.sampled_from([1, 3, 50]))
    redundancy = torch.randint(levels, (3, n), generator=torch.Generator().manual_seed(seed)) / levels
    got = select_script(x, q, m, redundancy=redundancy)
    whole = greedy_map_features(x, got.relevance, min(2 * m, n)).tolist()
    for order, scores, found, gains, kept in zip(whole, redundancy, got.order, got.gains, got.kept):
        survivors = reference.ascending(scores.tolist())[:m]
        assert found.tolist() == reference.stopped(order, survivors, m)
        assert kept.tolist() == reference.fuse(order, survivors, m, "supplement")
        assert not gains[found < 0].any()


def test_filter_chooses_among_survivors_only():
    x, q = image(2, n=50)
    got = select_script(x, q, 10, fusion="filter", rho=0.4)
    survivors = graph_keep(graph_scores(x), 20)
    for b in range(2):
        assert set(got.kept[b].tolist()) <= set(survivors[b].tolist())
    assert not torch.equal(got.kept, select_script(x, q, 10, fusion="filter", rho=1.0).kept)
    assert torch.equal(
        select_script(x, q, 10, fusion="filter", rho=1.0).kept,
        select_script(x, q, 10, fusion="released").kept,
    )


def test_filter_rounds_the_share_to_the_nearest_count():
    x, q = image(2, B=20, n=9)
    got = select_script(x, q, 4, fusion="filter", rho=0.5)  # 4.5 tokens: 5
    order = greedy_map(query_kernel(x, got.relevance), 4, candidates=graph_keep(got.redundancy, 5))
    assert torch.equal(got.order, order)
    assert not torch.equal(got.kept, graph_keep(got.redundancy, 4))


def test_released_ignores_the_graph_and_supplement_does_not():
    x, q = image(3, n=60)
    assert torch.equal(
        select_script(x, q, 12, fusion="released", tau=0.0).kept,
        select_script(x, q, 12, fusion="released", tau=0.9, graph="full").kept,
    )
    first = select_script(x, q, 12, tau=0.0, fusion="supplement")
    second = select_script(x, q, 12, tau=0.3, graph="full", fusion="supplement")
    assert not torch.equal(first.kept, second.kept)


def test_given_relevance_takes_the_place_of_the_query():
    x, q = image(4)
    r = relevance_scores(x, q)
    want = select_script(x, q, 7)
    got = select_script(x, None, 7, relevance=r)
    assert torch.equal(got.kept, want.kept)
    assert torch.equal(got.relevance, r)
    assert not torch.equal(select_script(x, None, 7, relevance=1 - r).kept, want.kept)


@pytest.mark.parametrize("rule", RULES)
def test_given_redundancy_takes_the_place_of_the_graph(rule):
    x, q = image(4)
    scores = graph_scores(x, tau=0.1)
    want = select_script(x, q, 7, tau=0.1, fusion=rule)
    got = select_script(x, q, 7, fusion=rule, redundancy=scores.double())
    assert torch.equal(got.kept, want.kept)
    assert torch.equal(got.order, want.order)
    assert torch.equal(got.relevance, want.relevance)
    assert torch.equal(got.redundancy, scores)
    if rule != "released":
        assert not torch.equal(select_script(x, q, 7, fusion=rule, redundancy=-scores).kept, want.kept)
        scores[1, 3] = torch.nan
        with pytest.raises(ValueError, match="redundancy=nan at batch 1, token 3: must be finite in float32"):
            select_script(x, q, 7, fusion=rule, redundancy=scores)


def test_query_mask_is_used():
    x, q = image(5, lq=6)
    mask = torch.tensor([[True, True, False, False, True, False]] * 2)
    assert torch.equal(select_script(x, q, 7, query_mask=mask).kept, select_script(x, q[:, [0, 1, 4]], 7).kept)
    assert not torch.equal(select_script(x, q, 7).kept, select_script(x, q, 7, query_mask=mask).kept)


@pytest.mark.parametrize("rule", RULES)
class TestEdges:
    @pytest.mark.parametrize("n", [1, 2, 7, 16])
    def test_all_tokens(self, rule, n):
        x, q = image(6, n=n)
        assert select_script(x, q, n, fusion=rule).kept.tolist() == [list(range(n))] * 2

    def test_identical_tokens(self, rule):
        x = torch.randn(1, 1, 33, generator=torch.Generator().manual_seed(0)).expand(1, 15, 33)
        got = select_script(x, torch.ones(1, 2, 33), 4, fusion=rule)
        # even tokens meet 7 odd ones, odd tokens meet 8: the graph keeps the first even ones
        want = {"released": [0, 1, 2, 3], "supplement": [0, 2, 4, 5], "filter": [0, 2, 4, 6]}[rule]
        assert got.kept.tolist() == [want]

    def test_zero_vectors(self, rule):
        got = select_script(torch.zeros(1, 9, 4), torch.ones(1, 2, 4), 3, fusion=rule)
        assert got.kept.tolist() == [[0, 1, 2]]
        assert rule == "released" or got.redundancy.tolist() == [[0.0] * 9]

    def test_relevance_all_zero_or_equal(self, rule):
        x, _ = image(7, n=21)
        for value in (0.0, 0.5, 1.0):
            row = select_script(x, None, 8, relevance=torch.full((2, 21), value), fusion=rule).kept
            assert row.shape == (2, 8)
            assert (row[:, 1:] > row[:, :-1]).all()

    def test_fewer_channels_than_tokens_kept(self, rule):
        x, q = image(8, n=30, d=3)
        kept = select_script(x, q, 20, fusion=rule).kept
        assert kept.shape == (2, 20)
        assert (kept[:, 1:] > kept[:, :-1]).all()

    def test_an_empty_batch(self, rule):
        x, q = image(9, B=0)
        got = select_script(x, q, 5, fusion=rule)
        assert got.kept.shape == (0, 5)
        assert got.relevance.shape == (0, 40)
        assert rule == "released" or got.redundancy.shape == (0, 40)

    def test_batch_is_singles(self, rule):
        x, q = image(10, B=6)
        together = select_script(x, q, 11, fusion=rule)
        pairs = [select_script(x[b : b + 2], q[b : b + 2], 11, fusion=rule).kept for b in (0, 2, 4)]
        singles = [select_script(x[b : b + 1], q[b : b + 1], 11, fusion=rule).kept for b in range(6)]
        assert torch.equal(torch.cat(pairs), together.kept)
        assert torch.equal(torch.cat(singles), together.kept)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"m": 41}, ValueError, "m=41: must be from 1 to 40, the number of tokens"),
        ({"m": 0}, ValueError, "m=0: must be from 1 to 40, the number of tokens"),
        ({"tau": 1.5}, ValueError, "tau=1.5: a cosine, from -1 to 1"),
        ({"tau": "0.3"}, ValueError, "tau='0.3': a cosine from -1 to 1, or 'otsu' or 'quantile'"),
        ({"tau": None}, TypeError, "tau=None: must be a number"),
        ({"gamma": -1}, ValueError, "gamma=-1: a number, at least 0"),
        (
            {"gamma": 200},
            ValueError,
            r"gamma=200 with tau=0.3: gamma \* \(1 - tau\) must be at most 80",
        ),
        ({"graph": "knn"}, ValueError, "graph='knn': choose from 'bipartite', 'full', 'random'"),
        ({"kernel": "rbf"}, ValueError, "kernel='rbf': choose from 's_prime', 's'"),
        (
            {"fusion": "and"},
            ValueError,
            "fusion='and': choose from 'released', 'supplement', 'filter'",
        ),
        ({"rho": 0.0}, ValueError, "rho=0.0: a share of the tokens, above 0"),
        ({"rho": 1.1}, ValueError, "rho=1.1: a share of the tokens, from 0 to 1"),
        ({"sign": 0}, ValueError, "sign=0: choose from 1, -1"),
        (
            {"redundancy": torch.ones(2, 39)},
            ValueError,
            r"redundancy of shape \(2, 39\): must be \(B, n\) with B=2, n=40",
        ),
        ({"query": None}, ValueError, "query and relevance: exactly one of them must be given"),
        ({"relevance": torch.ones(2, 40)}, ValueError, "query and relevance: exactly one of them must be given"),
        (
            {"query": torch.ones(2, 48)},
            ValueError,
            r"query of shape \(2, 48\): must be \(B, l, d\) with B=2, d=48",
        ),
        ({"query": torch.ones(2, 3, 47)}, ValueError, r"query of shape \(2, 3, 47\)"),
        ({"query": torch.ones(1, 3, 48)}, ValueError, r"query of shape \(1, 3, 48\)"),
        (
            {"query": torch.ones(2, 0, 48)},
            ValueError,
            r"query of shape \(2, 0, 48\): must have at least one query token",
        ),
        (
            {"features": torch.ones(2, 0, 48)},
            ValueError,
            r"features of shape \(2, 0, 48\): must have at least one token",
        ),
        (
            {"features": torch.ones(40, 48)},
            ValueError,
            r"features of shape \(40, 48\): must be \(B, n, d\)",
        ),
        (
            {"query_mask": torch.ones(2, 4).bool()},
            ValueError,
            r"query_mask of shape \(2, 4\): must be \(B, l\) with B=2, l=5",
        ),
        ({"query_mask": torch.ones(2, 5)}, TypeError, "query_mask of dtype torch.float32: must be a bool tensor"),
        (
            {"query_mask": torch.tensor([[True] * 5, [False] * 5])},
            ValueError,
            "query_mask without any True at batch 1: must leave at least one query token",
        ),
    ],
)
def test_wrong_arguments(change, error, words):
    x, q = image(0)
    arguments = {"features": x, "query": q, "m": 5} | change
    with pytest.raises(error, match=words) as caught:
        select_script(**arguments)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_values_that_are_not_finite_are_pointed_at(bad):
    x, q = image(0)
    x[1, 7, 3] = bad
    with pytest.raises(ValueError, match=f"features={bad} at batch 1, token 7, channel 3: must be finite in float32"):
        select_script(x, q, 3)
    x, q = image(0)
    q[0, 2, 1] = bad
    with pytest.raises(
        ValueError, match=f"query={bad} at batch 0, query token 2, channel 1: must be finite in float32"
    ):
        select_script(x, q, 3)
    with pytest.raises(ValueError, match=f"scores={bad} at batch 0, token 1: must be finite in float32"):
        graph_keep(torch.tensor([[0.0, bad]]), 1)
    with pytest.raises(ValueError, match="features=inf at batch 0, token 0, channel 1: must be finite in float32"):
        graph_scores(torch.tensor([[[1.0, 1e300]]], dtype=torch.float64))


def test_a_selection_is_frozen():
    selection = Selection(kept=torch.tensor([[0]]))
    with pytest.raises(AttributeError):
        selection.kept = torch.tensor([[1]])
    assert (selection.order, selection.redundancy, selection.relevance, selection.embeddings) == (None,) * 4

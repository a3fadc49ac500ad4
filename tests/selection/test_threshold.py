"""Thresholds from an image's own similarities, against slow loops over all pairs in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlprune.selection import graph_scores, graph_threshold, select_script

EXACT = settings(derandomize=True, deadline=None, max_examples=30)
GRAPHS = ["bipartite", "full", "random"]
BIN = 2 / 1024


def tokens(seed, B, n, d=6):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, n, d, generator=g) + torch.randn(B, 1, d, generator=g)


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
    x = tokens(seed, 1, n)
    values = meetings(x[0], graph)
    best = max(between(values, v) for v in values)
    found = between(values, float(graph_threshold(x, "otsu", graph=graph)))
    assert found >= best - 4 * BIN  # bins hide the pairs' exact places


@pytest.mark.parametrize("graph", GRAPHS)
@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(3, 24))
def test_a_quarter_of_the_pairs_lies_above_the_quantile(graph, seed, n):
    x = tokens(seed, 1, n)
    values = meetings(x[0], graph)
    border = float(graph_threshold(x, "quantile", graph=graph))
    assert sum(v >= border + 1e-5 for v in values) <= 0.25 * len(values)
    assert sum(v >= border - BIN - 1e-5 for v in values) >= 0.25 * len(values)


@pytest.mark.parametrize("rule", ["otsu", "quantile"])
def test_each_image_has_its_own(rule):
    x = torch.cat([tokens(1, 1, 30), tokens(2, 1, 30)])
    both = graph_threshold(x, rule)
    assert both.tolist() == [float(graph_threshold(x[i : i + 1], rule)) for i in range(2)]
    scores = graph_scores(x, tau=rule)
    for i in range(2):
        alone = graph_scores(x[i : i + 1], tau=float(both[i]))
        assert torch.equal(scores[i : i + 1], alone)


@pytest.mark.parametrize("rule", ["otsu", "quantile"])
def test_tokens_that_are_all_the_same_or_alone(rule):
    assert -1 <= float(graph_threshold(torch.ones(1, 9, 3), rule)) <= 1
    assert graph_threshold(torch.ones(1, 1, 3), rule).tolist() == [1.0]
    assert graph_threshold(torch.ones(0, 9, 3), rule).shape == (0,)
    assert graph_scores(torch.ones(0, 9, 3), tau=rule).shape == (0, 9)
    assert graph_scores(torch.zeros(1, 9, 3), tau=rule).isfinite().all()


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_few_cosines_at_a_time(graph, monkeypatch):
    x = tokens(5, 2, 40)
    at_once = graph_threshold(x, "otsu", graph=graph)
    monkeypatch.setattr("vlprune.selection.threshold.HELD", 50)
    assert torch.equal(graph_threshold(x, "otsu", graph=graph), at_once)


@pytest.mark.parametrize("fusion", ["supplement", "filter", "released"])
def test_in_script(fusion):
    x, question = tokens(3, 1, 40), torch.randn(1, 3, 6, generator=torch.Generator().manual_seed(0))
    own = float(graph_threshold(x, "otsu"))
    got = select_script(x, question, 8, tau="otsu", fusion=fusion)
    want = select_script(x, question, 8, tau=own, fusion=fusion)
    assert torch.equal(got.kept, want.kept)
    torch.testing.assert_close(got.redundancy, want.redundancy)


def test_refused():
    with pytest.raises(ValueError, match="tau must be a cosine from -1 to 1, 'otsu' or 'quantile', got 'median'"):
        graph_scores(torch.ones(1, 2, 3), tau="median")
    with pytest.raises(ValueError, match="rule"):
        graph_threshold(torch.ones(1, 2, 3), "median")

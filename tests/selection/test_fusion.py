import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import selection_reference as reference
from vlprune.selection import fuse

EXACT = settings(derandomize=True, deadline=None, max_examples=150)


@st.composite
def cases(draw):
    n = draw(st.integers(1, 14))
    m = draw(st.integers(1, n))
    g = draw(st.integers(m, n))
    length = draw(st.integers(min(2 * m, n), n))
    orders = [draw(st.permutations(range(n)))[:length] for _ in range(2)]
    graphs = [draw(st.permutations(range(n)))[:g] for _ in range(2)]
    return m, orders, graphs


@pytest.mark.parametrize("rule", ["released", "supplement", "filter"])
@EXACT
@given(case=cases())
def test_fusion_by_sets(rule, case):
    m, orders, graphs = case
    got = fuse(torch.tensor(orders), torch.tensor(graphs), m, rule=rule).tolist()
    assert got == [reference.fuse(o, g, m, rule) for o, g in zip(orders, graphs)]
    for row in got:
        assert len(row) == m
        assert row == sorted(set(row))


@EXACT
@given(case=cases())
def test_released_is_the_greedy_set_whatever_the_graph_says(case):
    m, orders, graphs = case
    got = fuse(torch.tensor(orders), torch.tensor(graphs), m, rule="released").tolist()
    assert got == [sorted(o[:m]) for o in orders]
    assert got == [reference.fuse(o, g, m, "released") for o, g in zip(orders, graphs)]


def test_the_three_rules_differ():
    order, graph = torch.tensor([[5, 0, 3, 1]]), torch.tensor([[0, 1, 2]])
    assert [fuse(order, graph, 2, rule=r).tolist()[0] for r in ("released", "supplement", "filter")] == [
        [0, 5],
        [0, 3],
        [0, 1],
    ]


def test_supplement_needs_exactly_2m_less_the_intersection():
    order, graph = torch.tensor([[5, 0, 3, 1]]), torch.tensor([[0, 1, 2]])
    assert fuse(order[:, :3], graph, 2, rule="supplement").tolist() == [[0, 3]]
    with pytest.raises(ValueError, match=r"order of shape \(1, 2\): must hold at least 3 ranks to supplement m=2"):
        fuse(order[:, :2], graph, 2, rule="supplement")
    with pytest.raises(ValueError, match=r"graph_keep of shape \(1, 1\): must hold at least m=2 tokens to supplement"):
        fuse(order, graph[:, :1], 2, rule="supplement")


def test_an_order_may_end_before_its_row_does():
    """As `select_script` ends it; it is too short where the fusion needs more."""
    graph, other = torch.tensor([[0, 1, 2]]), torch.tensor([[1, 2, 4]])
    order = torch.tensor([[5, 0, 3, -1]])
    assert fuse(order, graph, 2, rule="supplement").tolist() == [[0, 3]]
    assert [fuse(order, graph, 3, rule=rule).tolist() for rule in ("released", "filter")] == [[[0, 3, 5]]] * 2
    with pytest.raises(ValueError, match=r"must hold at least 4 ranks to supplement m=2; batch 0 holds 3"):
        fuse(order, other, 2, rule="supplement")
    for rule in ("released", "filter"):
        with pytest.raises(ValueError, match=r"order of shape \(1, 4\): must hold at least 4 ranks; batch 0 holds 3"):
            fuse(order, graph, 4, rule=rule)


def test_filter_may_have_few_graph_tokens():
    order, graph = torch.tensor([[5, 0, 3, 1]]), torch.tensor([[3]])
    assert fuse(order, graph, 3, rule="filter").tolist() == [[0, 3, 5]]


def test_an_empty_batch_stays_empty():
    empty = torch.empty(0, 4, dtype=torch.int64)
    for rule in ("released", "supplement", "filter"):
        assert fuse(empty, empty, 2, rule=rule).shape == (0, 2)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        (
            {"rule": "union"},
            ValueError,
            "rule='union': choose from 'released', 'supplement', 'filter'",
        ),
        ({"m": 0}, ValueError, "m=0: must be from 1 to 3, the length of order"),
        ({"m": 4}, ValueError, "m=4: must be from 1 to 3, the length of order"),
        ({"m": 1.0}, TypeError, "m=1.0: must be an int"),
        ({"order": torch.zeros(1, 3)}, TypeError, "order of dtype torch.float32: must be an int64 tensor"),
        ({"order": torch.zeros(1, 0).long()}, ValueError, r"order of shape \(1, 0\): must have at least one rank"),
        ({"order": torch.tensor([1, 2])}, ValueError, r"order of shape \(2,\): must be \(B, k\)"),
        (
            {"graph_keep": torch.tensor([[1], [2]])},
            ValueError,
            r"graph_keep of shape \(2, 1\): must be \(B, g\) with B=1",
        ),
    ],
)
def test_wrong_arguments(change, error, words):
    arguments = {"order": torch.tensor([[0, 1, 2]]), "graph_keep": torch.tensor([[0]]), "m": 1}
    arguments |= {"rule": "released"} | change
    with pytest.raises(error, match=words):
        fuse(arguments.pop("order"), arguments.pop("graph_keep"), arguments.pop("m"), **arguments)

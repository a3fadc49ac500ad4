"""The graph as a weight, against the slow float64 reference and by its properties."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import methods_reference as reference
from vlprune import CDPruner, ScriptPlus
from vlprune.selection import graph_scores, graph_weights, relevance_focus
from vlprune.types import Query, TokenView


def tokens_of(seed, B, n, d=6):
    """Tokens with a direction in common, so that some of them meet in the graph."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, n, d, generator=g) + torch.randn(1, 1, d, generator=g)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), rows=st.integers(1, 7), columns=st.integers(1, 7))
def test_as_the_reference(seed, rows, columns):
    tokens = tokens_of(seed, 2, rows * columns)
    found = graph_weights(tokens, grid=(rows, columns))
    for b in range(2):
        assert found[b].tolist() == pytest.approx(
            reference.graph_weights(tokens[b].tolist(), (rows, columns)), rel=1e-4
        )
    assert (found > 0).all()
    assert (found <= 1).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_an_image_does_not_look_at_its_neighbours(dtype):
    tokens = tokens_of(0, 3, 30).to(dtype)
    together = graph_weights(tokens, grid=(5, 6))
    assert together.dtype == torch.float32
    alone = torch.cat([graph_weights(image, grid=(5, 6)) for image in tokens.split(1)])
    assert torch.allclose(together, alone, rtol=1e-5, atol=0)


def test_half_of_the_weight_is_left_at_the_median():
    tokens = tokens_of(1, 1, 36)
    weights = graph_weights(tokens, grid=(6, 6)).view(6, 6)
    assert weights.median() == 0.5
    assert torch.equal(weights[::2, ::2], weights[1::2, 1::2])  # one for a cell


def test_the_graph_is_as_it_is_set():
    tokens, means = tokens_of(2, 1, 36), tokens_of(2, 1, 36).view(1, 3, 2, 3, 2, 6).mean((2, 4)).view(1, 9, 6)
    for setting in ({"tau": 0.6}, {"gamma": 1.0}, {"graph": "full"}, {"tau": "otsu"}):
        s = graph_scores(means, **setting).clamp(min=0)
        wanted = 1 / (1 + s / s.median().clamp(min=1))
        assert torch.allclose(graph_weights(tokens, grid=(6, 6), **setting).view(6, 6)[::2, ::2].flatten(), wanted[0])


def test_no_images_and_a_grid_that_does_not_fit():
    assert graph_weights(torch.zeros(0, 6, 3), grid=(2, 3)).shape == (0, 6)
    with pytest.raises(ValueError, match=r"grid=\(2, 2\): must have as many cells as there are tokens, 6"):
        graph_weights(torch.zeros(1, 6, 3), grid=(2, 2))


@pytest.mark.parametrize("source", ["clip", "llm"])
@pytest.mark.parametrize(("trust", "weight"), [(1.0, 1.0), (1.0, 0.25), (0.5, 0.5), (0.0, 1.0), (1.0, 0.0)])
def test_script_plus_weighs_by_relevance_and_graph(trust, weight, source):
    """As far as the question asks about something small: here about one token, about three, and about nothing in
    particular. By the LLM's embeddings neither power nor graph counts, whatever is asked."""
    tokens = tokens_of(3, 3, 36, d=64)
    tokens[1, 1:3] = tokens[1, :1]
    view = TokenView(tokens, (6, 6))
    text = torch.stack([tokens[0, 0] - tokens[0].mean(0), tokens[1, 0] - tokens[1].mean(0), torch.ones(64)])[:, None]
    query = Query(tokens, text, 1, source, ("?",) * 3)
    found = ScriptPlus(keep=9, trust=trust, graph_weight=weight).select(view, query)
    focus = relevance_focus(found.relevance)[:, None]
    assert focus[0] == 1
    assert 0 < focus[1] < 1
    assert focus[2] == 0
    small = 0 if source == "llm" else focus
    graph = 1 - trust * weight * small * (1 - graph_weights(tokens, grid=(6, 6)))
    wanted = (trust * found.relevance + 1 - trust) ** (1 + small) * graph  # the power is 2
    assert torch.allclose(found.scores, wanted, rtol=1e-5)


def test_a_question_about_much_is_left_to_the_greedy():
    """Then script_plus is cdpruner."""
    tokens = tokens_of(5, 1, 36)
    view, query = TokenView(tokens, (6, 6)), Query(tokens, torch.ones(1, 1, 6), 1, "clip", ("?",))
    found = ScriptPlus(keep=9).select(view, query)
    assert relevance_focus(found.relevance) == 0
    assert torch.equal(found.kept, CDPruner(keep=9).select(view, query).kept)


@pytest.mark.parametrize("keep", [4, 9])
def test_by_the_llms_embeddings_it_is_cdpruner(keep):
    """Also where a dual encoder's relevance, of the same values, tells that something small is asked about."""
    tokens = tokens_of(3, 1, 36, d=64)
    view, text = TokenView(tokens, (6, 6)), (tokens[:, 0] - tokens.mean(1))[:, None]
    by_llm, by_clip = (Query(tokens, text, 1, source, ("?",)) for source in ("llm", "clip"))
    usual, found = CDPruner(keep=keep).select(view, by_llm), ScriptPlus(keep=keep).select(view, by_llm)
    assert relevance_focus(found.relevance) == 1
    assert torch.equal(found.order, usual.order)
    assert torch.equal(found.scores, usual.relevance)
    assert not torch.equal(found.kept, ScriptPlus(keep=keep).select(view, by_clip).kept)


def test_without_a_question_all_weigh_the_same():
    view = TokenView(tokens_of(4, 1, 36), (6, 6))
    with_graph, without = (ScriptPlus(keep=9, graph_weight=weight).select(view, None) for weight in (1.0, 0.0))
    assert torch.equal(with_graph.kept, without.kept)


@pytest.mark.parametrize("weight", [-0.1, 1.5])
def test_a_weight_is_a_share(weight):
    with pytest.raises(ValueError, match=rf"graph_weight={weight}: a share from 0 to 1"):
        ScriptPlus(graph_weight=weight)

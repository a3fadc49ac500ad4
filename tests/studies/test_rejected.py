"""Variants of ScriptPlus that the study of its settings compares: each is the default but for what it says."""

import pytest
import torch

from vlprune import ScriptPlus
from vlprune.selection import graph_scores, graph_weights, greedy_map_features, relevance_focus
from vlprune.studies.rejected import ByBatch, ByQuarter, QuarterUnasked, TokenGraphWeight, Unfocused
from vlprune.types import Query, TokenView


def view_and_query(B=2):
    """A question about the first token of each image alone, so that power and graph count."""
    tokens = torch.randn(B, 36, 64, generator=torch.Generator().manual_seed(0))
    view, query = TokenView(tokens, (6, 6)), Query(tokens, tokens[:, :1], 1, "clip", ("?",) * B)
    assert (relevance_focus(ScriptPlus().relevance_scores(view, query)) == 1).all()
    return view, query


def default_kept(view, query, keep, power=ScriptPlus.power):
    return ScriptPlus(keep=keep, power=power).select(view, query).kept


@pytest.mark.parametrize("keep", [3, 9, 20])
def test_what_changes_nothing_is_the_default(keep):
    """Also its power: with another one the default keeps other tokens."""
    view, query = view_and_query(B=1)
    usual = default_kept(view, query, keep)
    assert torch.equal(ByBatch(keep).select(view, query).kept, usual)
    assert torch.equal(QuarterUnasked(3).select(view, query).kept, default_kept(view, query, 3))  # no whole quarter
    assert not torch.equal(default_kept(view, query, 9, power=0.25), default_kept(view, query, 9))


def test_the_batch_scales_relevance_together():
    view, query = view_and_query(B=2)
    cosine = torch.cosine_similarity(query.image, query.text, dim=-1)
    relevance = ByBatch(9).select(view, query).relevance
    assert torch.allclose(relevance, (cosine - cosine.min()) / (cosine.max() - cosine.min()))
    assert relevance.amin(1).max() > 0  # 0 for one image alone


def test_every_quarter_has_its_part_by_the_default_greedy():
    view, query = view_and_query()
    kept = ByQuarter(12).select(view, query).kept
    quarters = kept // 6 // 3 * 2 + kept % 6 // 3
    assert [[row.count(q) for q in range(4)] for row in quarters.tolist()] == [[3] * 4] * 2
    at = [6 * row + column for row in range(3) for column in range(3)]
    weights = ScriptPlus(keep=9).select(view, query).scores[:, at]
    first = torch.tensor(at)[greedy_map_features(view.features[:, at], weights, 3)]
    assert torch.equal(kept[quarters == 0].view(2, 3), first.sort(dim=1).values)


def test_the_graph_of_single_tokens_takes_weight():
    view, query = view_and_query()
    found = TokenGraphWeight(9).select(view, query)
    s = graph_scores(view.features).clamp(min=0)
    for b in range(2):
        for token in range(36):
            factor = 1 / (1 + s[b, token] / max(1.0, s[b].median()))
            wanted = found.relevance[b, token] ** ScriptPlus.power * factor
            assert found.scores[b, token] == pytest.approx(float(wanted), rel=1e-4)
    assert torch.equal(found.kept, greedy_map_features(view.features, found.scores, 9).sort(dim=1).values)


def test_an_image_without_redundancy():
    """Tokens that are like no other: the median is 0, and nothing is divided by it."""
    tokens = torch.eye(16)[None]
    text = torch.rand(1, 1, 16, generator=torch.Generator().manual_seed(0)) ** 8
    found = TokenGraphWeight(4).select(TokenView(tokens, (4, 4)), Query(tokens, text, 1, "clip", ("?",)))
    assert relevance_focus(found.relevance) > 0
    assert torch.equal(found.scores, found.relevance ** (1 + relevance_focus(found.relevance)[:, None]))


@pytest.mark.parametrize("source", ["clip", "llm"])
def test_for_every_question(source):
    """Also where it asks about something large; where it asks about little, it is the default."""
    view, query = view_and_query()
    assert torch.equal(Unfocused(9).select(view, query).scores, ScriptPlus(9).select(view, query).scores)
    large = Query(view.features, torch.ones(2, 1, 64), 1, source, ("?",) * 2)
    assert (relevance_focus(ScriptPlus().relevance_scores(view, large)) == 0).all()
    found = Unfocused(9, power=1.25).select(view, large)
    wanted = found.relevance**1.25 * graph_weights(view.features, grid=(6, 6))
    assert torch.allclose(found.scores, wanted)


def test_the_last_quarter_does_without_the_question():
    view, query = view_and_query()
    order = QuarterUnasked(12).select(view, query).order
    assert torch.equal(order[:, :9], ScriptPlus(keep=12).select(view, query).order[:, :9])
    for b in range(2):
        unit = torch.nn.functional.normalize(view.features[b].double(), dim=1)
        chosen = order[b, :9].tolist()
        for token in order[b, 9:].tolist():  # each adds most to the volume of those before, all weighing the same
            others = [j for j in range(36) if j not in chosen]
            volumes = [float(torch.det(unit[[*chosen, j]] @ unit[[*chosen, j]].T)) for j in others]
            assert token == others[volumes.index(max(volumes))]
            chosen.append(token)

"""Variants of ScriptPlus that were tried and left out, for `vlprune study defaults`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vlprune.methods import ScriptPlus
from vlprune.methods.base import QueryMethod
from vlprune.selection import graph_scores, greedy_map_features, grid_cells
from vlprune.types import Query, Selection, TokenView


@dataclass(frozen=True)
class Variant(QueryMethod):
    """What the variants share: tokens that weigh as ScriptPlus has it by default."""

    def weighing(self, view: TokenView, query: Query | None) -> Tensor:
        """(B, n) what ScriptPlus weighs the tokens by."""
        assert query is not None
        return ScriptPlus().weights(view, self.relevance_scores(view, query), query.source)


@dataclass(frozen=True)
class ByBatch(Variant):
    """Relevance scaled to [0, 1] over all images of a batch together, not in each."""

    name: ClassVar[str] = "by_batch"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        assert query is not None
        cosine = query.sign * torch.cosine_similarity(query.image.float(), query.text.float(), dim=-1)
        relevance = (cosine - cosine.min()) / (cosine.max() - cosine.min()).clamp(min=1e-6)
        weights = ScriptPlus().weights(view, relevance, query.source)
        order = greedy_map_features(view.features, weights, self.count(view.n))
        return Selection.from_order(order, relevance=relevance)


@dataclass(frozen=True)
class ByQuarter(Variant):
    """The greedy in each quarter of the image by itself, a quarter of the budget each, as a budget per tile would."""

    name: ClassVar[str] = "by_quarter"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        m, relevance = self.count(view.n), self.weighing(view, query)
        cells = grid_cells(*view.grid, min(4, view.n))[0].to(view.features.device)
        orders = []
        for quarter in range(4):
            at = (cells == quarter).nonzero()[:, 0]
            share = min(len(at), (m + 3 - quarter) // 4)
            if share:
                orders.append(at[greedy_map_features(view.features[:, at], relevance[:, at], share)])
        return Selection.from_order(torch.cat(orders, dim=1), relevance=relevance)


@dataclass(frozen=True)
class TokenGraphWeight(ScriptPlus):
    """The graph of the tokens themselves takes weight from them, not that of the means of 2 × 2."""

    name: ClassVar[str] = "token_graph_weight"

    def graph_weights(self, view: TokenView) -> Tensor:
        s = graph_scores(view.features).clamp(min=0.0)
        return 1.0 / (1.0 + s / s.median(dim=1, keepdim=True).values.clamp(min=1.0))


@dataclass(frozen=True)
class Unfocused(ScriptPlus):
    """Power and graph count for every question, not only where it asks about something small."""

    name: ClassVar[str] = "unfocused"

    def focus(self, relevance: Tensor, source: str) -> Tensor:
        return torch.ones_like(relevance[:, 0])


@dataclass(frozen=True)
class QuarterUnasked(Variant):
    """The last quarter of the budget goes to tokens that differ from those before, whatever the question."""

    name: ClassVar[str] = "quarter_unasked"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        m, relevance = self.count(view.n), self.weighing(view, query)
        asked = greedy_map_features(view.features, relevance, m - m // 4)
        order = greedy_map_features(view.features, torch.ones_like(relevance), m, candidates=asked)
        order = torch.cat([asked, order[:, asked.shape[1] :]], dim=1)  # candidates come first, in an order of their own
        return Selection.from_order(order, relevance=relevance)

"""Variants of ScriptPlus that were tried and left out, for `vlprune study defaults`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vlprune.methods import ScriptPlus
from vlprune.methods.base import QueryMethod
from vlprune.selection import graph_scores, greedy_map_features, grid_cells, group_means
from vlprune.types import Query, Selection, TokenView


@dataclass(frozen=True)
class Variant(QueryMethod):
    """What the variants share: relevance to the power of ScriptPlus's default."""

    def weighing(self, view: TokenView, query: Query | None) -> Tensor:
        """(B, n) relevance as ScriptPlus weighs tokens by it."""
        return self.relevance_scores(view, query) ** ScriptPlus.power


@dataclass(frozen=True)
class ByBatch(Variant):
    """Relevance scaled to [0, 1] over all images of a batch together, not in each."""

    name: ClassVar[str] = "by_batch"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        assert query is not None
        cosine = query.sign * torch.cosine_similarity(query.image.float(), query.text.float(), dim=-1)
        relevance = (cosine - cosine.min()) / (cosine.max() - cosine.min()).clamp(min=1e-6)
        order = greedy_map_features(view.features, relevance**ScriptPlus.power, self.count(view.n))
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
class GraphWeight(Variant):
    """The graph's redundancy s takes weight from a token: its relevance times 1 − w + w / (1 + s / median of s).

    With `across_scales` s is that of the mean of the 2 × 2 neighbours that a token belongs to; where a side is odd, the
    last row or column has cells of its own. `weight` is w.
    """

    weight: float = 1.0
    across_scales: bool = False

    name: ClassVar[str] = "graph_weight"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        relevance = self.weighing(view, query)
        s = self.redundancy(view)
        middle = s.median(dim=1, keepdim=True).values.clamp(min=1e-6)  # 0 where most tokens are like no other
        quality = relevance * (1 - self.weight + self.weight / (1 + s / middle))
        order = greedy_map_features(view.features, quality, self.count(view.n))
        return Selection.from_order(order, relevance=relevance, scores=quality)

    def redundancy(self, view: TokenView) -> Tensor:
        """(B, n) each token's redundancy, or that of its cell of 2 × 2 tokens, not below 0."""
        if not self.across_scales:
            return graph_scores(view.features).clamp(min=0.0)
        cells = cells_of_two(view.grid).to(view.features.device)
        count = int(cells.max()) + 1
        means = group_means(view.features, cells.expand(len(view.features), -1), count)
        return graph_scores(means).clamp(min=0.0)[:, cells]


def cells_of_two(grid: tuple[int, int]) -> Tensor:
    """The cell of 2 × 2 tokens that each token of a grid belongs to; (1, n) goes in pairs.

    >>> cells_of_two((3, 3)).tolist()
    [0, 0, 1, 0, 0, 1, 2, 2, 3]
    """
    rows, columns = grid
    row, column = torch.arange(rows) // 2, torch.arange(columns) // 2
    return (row[:, None] * ((columns + 1) // 2) + column).flatten()


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

"""CDPruner: diverse tokens, given the question."""

from dataclasses import dataclass
from typing import ClassVar

from vlprune.methods.base import QueryMethod
from vlprune.methods.registry import register_method
from vlprune.selection import greedy_map_features
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class CDPruner(QueryMethod):
    """Greedy determinantal selection on the cosine kernel of the tokens, weighted by relevance on both sides.

    Zhang et al., *Beyond Attention or Similarity: Maximizing Conditional Diversity for Token Pruning in MLLMs*,
    NeurIPS 2025, arXiv:2506.10967. It is what Script's second module computes. `relevance` and `sign` are as
    in `Script`; the paper's is "clip".

    >>> CDPruner(keep=64).needs_query
    True
    """

    name: ClassVar[str] = "cdpruner"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        relevance = self.relevance_scores(view, query)
        order = greedy_map_features(view.features, relevance, self.count(view.n))
        return Selection.from_order(order, relevance=relevance)

"""Diversity without the question: the determinantal process with every token equally relevant."""

from dataclasses import dataclass
from typing import ClassVar

from vlprune.methods.base import Method
from vlprune.methods.registry import register_method
from vlprune.selection import greedy_map_features
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class DppOnly(Method):
    """Greedy determinantal selection on the cosine kernel of the tokens.

    >>> import torch
    >>> from vlprune.types import TokenView
    >>> tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]])
    >>> DppOnly(keep=2).select(TokenView(tokens, (2, 2)), None).kept
    tensor([[0, 2]])
    """

    name: ClassVar[str] = "dpp_only"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        ones = view.features.new_ones(view.features.shape[:2])
        order = greedy_map_features(view.features, ones, self.count(view.n))
        return Selection.from_order(order)

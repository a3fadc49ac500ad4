"""DivPrune: tokens as far from each other as can be."""

from dataclasses import dataclass
from typing import ClassVar

from vlprune.methods.base import Method
from vlprune.methods.registry import register_method
from vlprune.selection import farthest_points
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class DivPrune(Method):
    """Farthest-point selection: each next token is the one least similar to all that are chosen.

    Alvar et al., *DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models*, CVPR 2025,
    arXiv:2503.02175. The first token is the one whose nearest neighbour is farthest; distance is 1 − cosine.

    >>> import torch
    >>> from vlprune.types import TokenView
    >>> tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.1, 1.0]]])
    >>> DivPrune(keep=2).select(TokenView(tokens, (2, 2)), None).kept.tolist()
    [[0, 2]]
    """

    name: ClassVar[str] = "divprune"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        order = farthest_points(view.features, self.count(view.n))
        return Selection.from_order(order)

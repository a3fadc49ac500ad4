"""A coarser picture: neighbouring tokens averaged."""

from dataclasses import dataclass
from typing import ClassVar

from vlprune.methods.base import Method
from vlprune.methods.registry import register_method
from vlprune.selection import grid_cells, group_means
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class AveragePool(Method):
    """The means of equal cells of the token grid, each in the place of the token in its middle.

    >>> import torch
    >>> from vlprune.types import TokenView
    >>> pooled = AveragePool(keep=2).select(TokenView(torch.arange(8.0).view(1, 8, 1), (2, 4)), None)
    >>> pooled.kept.tolist(), pooled.embeddings.flatten().tolist()
    ([[0, 2]], [2.5, 4.5])
    """

    name: ClassVar[str] = "average_pool"
    merges: ClassVar[bool] = True

    def select(self, view: TokenView, query: Query | None) -> Selection:
        m, images = self.count(view.n), view.features.shape[0]
        cells, middles = (part.to(view.features.device) for part in grid_cells(*view.grid, m))
        kept = middles.repeat(images, 1)
        if m == view.n:
            return Selection(kept=kept)
        means = group_means(view.features, cells.repeat(images, 1), m)
        return Selection(kept=kept, embeddings=means.to(view.features.dtype))

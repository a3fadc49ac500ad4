"""Every so many tokens in both directions: the reference that looks at nothing."""

from dataclasses import dataclass
from typing import ClassVar

from vlprune.devices import copy_to_device
from vlprune.methods.base import Method
from vlprune.methods.registry import register_method
from vlprune.selection import grid_cells
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class UniformGrid(Method):
    """The middle tokens of equal cells, whatever the image shows.

    >>> import torch
    >>> from vlprune.types import TokenView
    >>> UniformGrid(keep=4).select(TokenView(torch.zeros(1, 36, 2), (6, 6)), None).kept.tolist()
    [[7, 10, 25, 28]]
    """

    name: ClassVar[str] = "uniform_grid"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        _, middles = grid_cells(*view.grid, self.count(view.n))
        return Selection(kept=copy_to_device(middles, view.features.device).repeat(view.features.shape[0], 1))

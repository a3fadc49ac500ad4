"""The reference that every method must beat: tokens at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch

from vlprune.methods.base import Method
from vlprune.types import Selection

if TYPE_CHECKING:
    from vlprune.types import Query, TokenView


@dataclass(frozen=True)
class Random(Method):
    """A random choice that depends on `seed` and the image's number of tokens alone, whatever the batch or device.

    >>> from vlprune.models import TokenView
    >>> Random(keep=3, seed=1).select(TokenView(torch.zeros(1, 9, 2), (3, 3)), None).kept.shape
    torch.Size([1, 3])
    """

    seed: int = 0

    name: ClassVar[str] = "random"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + view.n)
        order = torch.randperm(view.n, generator=generator)[: self.count(view.n)].to(view.features.device)
        order = order.expand(view.features.shape[0], -1)
        return Selection(kept=order.sort(dim=1).values, order=order)

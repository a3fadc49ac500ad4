"""The reference that every method must beat: tokens at random."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vlprune.methods.base import ScoreMethod
from vlprune.methods.registry import register_method
from vlprune.types import Query, TokenView


@register_method
@dataclass(frozen=True)
class Random(ScoreMethod):
    """A random choice that depends on `seed` and the image's number of tokens alone, whatever the batch or device.

    >>> from vlprune.types import TokenView
    >>> Random(keep=3, seed=1).select(TokenView(torch.zeros(1, 9, 2), (3, 3)), None).kept.shape
    torch.Size([1, 3])
    """

    seed: int = 0

    name: ClassVar[str] = "random"
    shown_as: ClassVar[str | None] = None

    def score(self, view: TokenView, query: Query | None) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + view.n)
        rank = torch.randperm(view.n, generator=generator).argsort()
        return -rank.to(view.features.device, torch.float32).expand(len(view.features), -1)

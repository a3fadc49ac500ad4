"""The visual tokens of images as methods see them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from vlprune.errors import UserError
from vlprune.methods import Method
from vlprune.types import Selection

if TYPE_CHECKING:
    from vlprune.evaluation.answers import Bench
    from vlprune.evaluation.questions import Item
    from vlprune.types import Query, TokenView


@dataclass(frozen=True)
class Looked:
    """One image: its tokens (n, d) as they enter the LLM, on the CPU, and their grid (rows, columns)."""

    item: Item
    features: Tensor
    grid: tuple[int, int]


@dataclass(frozen=True)
class _Glimpse(Method):
    """Keeps one token, and remembers what it saw."""

    seen: list[TokenView] = field(default_factory=list, compare=False, repr=False)
    name: ClassVar[str] = "glimpse"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        self.seen.append(view)
        return Selection(kept=torch.zeros(len(view.features), 1, dtype=torch.int64, device=view.features.device))


def look(bench: Bench, items: Sequence[Item] | None = None, tiles: bool = False) -> list[Looked]:
    """The tokens of each image, once; unless `tiles` may be, images whose tokens are not one grid are refused."""
    from vlprune.evaluation.answers import answers

    images = list({item.group: item for item in (bench.items if items is None else items)}.values())
    glimpse, found = _Glimpse(keep=1), []
    bench.expect(len(images))
    for answered in answers(bench.loaded, images, {"look": glimpse}, batch=bench.batch):
        if answered.reason is not None:
            raise UserError(answered.reason)
        bench.tick("looking", len(answered.items))
        if not tiles and any(len(records) != 1 or len(records[0].parts) != 1 for records in answered.records):
            raise UserError(
                f"--model {bench.loaded.name}: its images are cut into tiles, and this study needs one grid."
            )
        for view in glimpse.seen:
            rows = view.features.float().cpu()
            found += [Looked(item, row, view.grid) for item, row in zip(answered.items, rows)]
        glimpse.seen.clear()
    return sorted(found, key=lambda one: one.item.number)


def cosines(features: Tensor) -> Tensor:
    """(n, n)"""
    unit = torch.nn.functional.normalize(features, dim=1)
    return unit @ unit.T


def neighbours(grid: tuple[int, int]) -> Tensor:
    """(n, n) which tokens are next to each other, diagonally too; not with themselves.

    >>> neighbours((2, 3)).sum(1).tolist()
    [3, 5, 3, 3, 5, 3]
    """
    far = apart(grid)
    return far.amax(0) == 1


def apart(grid: tuple[int, int]) -> Tensor:
    """(2, n, n) how many rows and columns lie between two tokens."""
    rows, columns = grid
    y = torch.arange(rows).repeat_interleave(columns)
    x = torch.arange(columns).repeat(rows)
    return torch.stack([(y[:, None] - y).abs(), (x[:, None] - x).abs()])


def near_similarity(one: Looked) -> Tensor:
    """(n,) each token's mean cosine to the tokens next to it."""
    beside = neighbours(one.grid)
    return (cosines(one.features) * beside).sum(1) / beside.sum(1)

"""Which columns of a prompt belong to which image or video."""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from vlprune.models.base import Vision


@dataclass(frozen=True)
class Unit:
    """One image or video: its batch `row`, its number `image` in that row, its tokens' `columns` on the CPU."""

    row: int
    image: int
    columns: Tensor
    vision: Vision


def runs(ids: Tensor, placeholder: int) -> list[int]:
    """The lengths of the stretches of placeholders in `ids` (B, L), row by row.

    >>> import torch
    >>> runs(torch.tensor([[1, 9, 9, 5, 9], [9, 9, 9, 0, 0]]), 9)
    [2, 1, 3]
    """
    marks = F.pad((ids == placeholder).int(), (1, 1)).diff(dim=1)
    starts, ends = ((marks == step).nonzero()[:, 1] for step in (1, -1))  # row by row, so that they pair up
    return (ends - starts).tolist()


def find_units(ids: Tensor, found: list[tuple[int, list[Vision]]], before: dict[int, int] | None = None) -> list[Unit]:
    """Deal the placeholders of `ids` (B, L), on the CPU, out to what was encoded, in reading order.

    `found` pairs each kind's placeholder with its images or videos. `before` counts, per row, those that came
    earlier than these columns.

    >>> import torch
    >>> from vlprune.types import squares
    >>> ids = torch.tensor([[1, 9, 9, 5, 9, 9], [0, 0, 0, 9, 9, 7]])
    >>> units = find_units(ids, [(9, [Vision(squares("image", "image", 2))] * 3)])
    >>> [(unit.row, unit.image, unit.columns.tolist()) for unit in units]
    [(0, 0, [1, 2]), (0, 1, [4, 5]), (1, 0, [3, 4])]
    """
    units: list[Unit] = []
    for placeholder, visions in found:
        places = (ids == placeholder).nonzero()
        lengths = [vision.shape.length for vision in visions]
        if sum(lengths) != len(places):
            raise ValueError(
                f"input_ids has {len(places)} image placeholders, but the images have {sum(lengths)} tokens."
            )
        for vision, part in zip(visions, places.split(lengths)):
            row = int(part[0, 0])
            if int(part[-1, 0]) != row:
                raise ValueError(f"input_ids: the placeholders of row {row} do not make up whole images.")
            units.append(Unit(row, 0, part[:, 1], vision))
    units.sort(key=lambda unit: (unit.row, int(unit.columns[0])))
    seen = dict(before or {})
    numbered = []
    for unit in units:
        numbered.append(Unit(unit.row, seen.get(unit.row, 0), unit.columns, unit.vision))
        seen[unit.row] = seen.get(unit.row, 0) + 1
    return numbered

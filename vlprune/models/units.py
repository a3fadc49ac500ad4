"""Which columns of a prompt belong to which image."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Unit:
    """One image: its batch `row`, its number `image` in that row, and its tokens' `columns` (n,) on the CPU."""

    row: int
    image: int
    columns: Tensor


def find_units(ids: Tensor, placeholder: int, lengths: list[int], before: dict[int, int] | None = None) -> list[Unit]:
    """Deal the placeholders of `ids` (B, L), on the CPU, out to images of the given lengths, in reading order.

    `before` counts, per row, the images that came earlier than these columns.

    >>> import torch
    >>> ids = torch.tensor([[1, 9, 9, 5, 9, 9], [0, 0, 0, 9, 9, 7]])
    >>> [(unit.row, unit.image, unit.columns.tolist()) for unit in find_units(ids, 9, [2, 2, 2])]
    [(0, 0, [1, 2]), (0, 1, [4, 5]), (1, 0, [3, 4])]
    """
    places = (ids == placeholder).nonzero()
    if sum(lengths) != len(places):
        raise ValueError(f"input_ids has {len(places)} image placeholders, but the images have {sum(lengths)} tokens.")
    seen = dict(before or {})
    units: list[Unit] = []
    for part in places.split(lengths):
        row = int(part[0, 0])
        if int(part[-1, 0]) != row:
            raise ValueError(f"input_ids: the placeholders of row {row} do not make up whole images.")
        units.append(Unit(row, seen.get(row, 0), part[:, 1]))
        seen[row] = seen.get(row, 0) + 1
    return units

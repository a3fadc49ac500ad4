"""Which columns of a prompt belong to which image or video."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vlprune.models.base import EncodedImage


@dataclass(frozen=True)
class PromptImage:
    """One image or video: its batch `row`, its number `image` in that row, its tokens' `columns` on the CPU."""

    row: int
    image: int
    columns: Tensor
    encoded: EncodedImage


def placeholder_runs(ids: Tensor, placeholder: int) -> list[int]:
    """The lengths of the stretches of placeholders in `ids` (B, L), on the CPU, row by row.

    >>> import torch
    >>> placeholder_runs(torch.tensor([[1, 9, 9, 5, 9], [9, 9, 9, 0, 0]]), 9)
    [2, 1, 3]
    """
    rows, length = ids.shape
    marks = np.zeros((rows, length + 2), dtype=bool)  # NumPy: torch takes three times as long for so little
    marks[:, 1:-1] = ids.numpy() == placeholder
    edges = np.diff(marks.ravel()).nonzero()[0]  # begin and end by turns
    return (edges[1::2] - edges[::2]).tolist()


def locate_images(
    ids: Tensor, encoded: list[tuple[int, list[EncodedImage]]], before: dict[int, int] | None = None
) -> list[PromptImage]:
    """Which placeholders of `ids` (B, L), on the CPU, belong to which encoded image or video, in reading order.

    `encoded` pairs each kind's placeholder with its images or videos. `before` counts, per row, those that came
    earlier than these columns.

    >>> import torch
    >>> from vlprune.types import square_shape
    >>> ids = torch.tensor([[1, 9, 9, 5, 9, 9], [0, 0, 0, 9, 9, 7]])
    >>> images = locate_images(ids, [(9, [EncodedImage(square_shape("image", "image", 2))] * 3)])
    >>> [(image.row, image.image, image.columns.tolist()) for image in images]
    [(0, 0, [1, 2]), (0, 1, [4, 5]), (1, 0, [3, 4])]
    """
    images: list[PromptImage] = []
    for placeholder, several in encoded:
        places = (ids == placeholder).nonzero()
        lengths = [one.shape.length for one in several]
        if sum(lengths) != len(places):
            raise ValueError(
                f"input_ids has {len(places)} image placeholders, but the images have {sum(lengths)} tokens."
            )
        for one, part in zip(several, places.split(lengths)):
            row = int(part[0, 0])
            if int(part[-1, 0]) != row:
                raise ValueError(f"input_ids: the placeholders of row {row} do not make up whole images.")
            images.append(PromptImage(row, 0, part[:, 1], one))
    images.sort(key=lambda image: (image.row, int(image.columns[0])))
    seen = dict(before or {})
    numbered = []
    for image in images:
        numbered.append(PromptImage(image.row, seen.get(image.row, 0), image.columns, image.encoded))
        seen[image.row] = seen.get(image.row, 0) + 1
    return numbered

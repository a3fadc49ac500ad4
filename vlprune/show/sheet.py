"""Where the tokens lie on a picture: an image, its base view and tiles, or a contact sheet of tiles or frames."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from vlprune.record import Record
from vlprune.types import GridPart

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

MAX_SHOWN = 16  # tiles or frames at most: with more, their tokens could not be told apart
SHEET_PIXELS = 1200  # the longer side of a sheet, and the most for that of one image


class Box(NamedTuple):
    """A rectangle in pixels."""

    left: float
    top: float
    width: float
    height: float


@dataclass(frozen=True)
class Cell:
    """The rectangle on the sheet that a grid (rows, columns) of tokens fills, and their numbers, row by row."""

    box: Box
    grid: tuple[int, int]
    tokens: list[int]
    label: str = ""

    def token_box(self, i: int) -> Box:
        """The rectangle of the cell's token number `i`."""
        rows, columns = self.grid
        y, x = divmod(i, columns)
        width, height = self.box.width / columns, self.box.height / rows
        return Box(self.box.left + x * width, self.box.top + y * height, width, height)


@dataclass(frozen=True)
class Sheet:
    """A picture and the tokens on it: `pixels` (height, width, 3) from 0 to 1, the cells, and a title.

    `scale` is how many pixels of the sheet a pixel of the image is wide.
    """

    pixels: np.ndarray
    cells: list[Cell]
    title: str
    scale: float = 1.0

    @property
    def several(self) -> bool:
        """Whether there are several tiles or frames."""
        return len(self.cells) > 1


def lay_out(image: Image.Image | Sequence[Image.Image], record: Record) -> Sheet:
    """The sheet of a record's image, or of the images of its tiles or frames, one for each.

    Tiles whose arrangement is not known, and that have no images of their own, are blank.

    >>> import torch
    >>> from PIL import Image
    >>> from vlprune.types import grid_shape
    >>> from vlprune.record import Record
    >>> video = grid_shape("video", "frame", (2, 3), count=64)
    >>> record = Record(kept=torch.tensor([0]), before=384, after=1, grid=(128, 3), parts=video.parts)
    >>> sheet = lay_out([Image.new("RGB", (30, 20))] * 64, record)
    >>> sheet.title, [cell.label for cell in sheet.cells[:3]]
    ('16 of 64 frames', ['1', '5', '9'])
    """
    parts = record.parts
    if isinstance(image, Sequence):
        if len(image) != len(parts):
            raise ValueError(f"image has {len(image)} entries for {len(parts)} tiles or frames: pass one for each.")
        return _contact_sheet(list(image), parts)
    if len(parts) <= 1:
        pixels, boxes = _mosaic([image], image.size, 1)
        tokens = parts[0].tokens.tolist() if parts else list(range(record.before))
        cell = Cell(boxes[0], parts[0].grid if parts else record.grid, tokens)
        return Sheet(pixels, [cell], "image", cell.box.width / image.width)
    if parts[0].name == "base":
        return _base_and_tiles(image, parts)
    return _contact_sheet([None] * len(parts), parts)


def _contact_sheet(images: Sequence[Image.Image | None], parts: Sequence[GridPart]) -> Sheet:
    """Tiles or frames side by side, evenly chosen where there are too many."""
    count = min(len(parts), MAX_SHOWN)
    shown = [i * len(parts) // count for i in range(count)]
    first, (rows, columns) = images[0], parts[0].grid
    pixels, boxes = _mosaic(
        [images[i] for i in shown], first.size if first else (columns, rows), math.ceil(math.sqrt(count))
    )
    cells = [Cell(box, parts[i].grid, parts[i].tokens.tolist(), _label(parts[i], i)) for i, box in zip(shown, boxes)]
    title = _describe_parts(parts)
    return Sheet(pixels, cells, f"{count} of {title}" if count < len(parts) else title)


def _label(part: GridPart, i: int) -> str:
    return part.name if part.name == "thumbnail" else str(i + 1)


def _describe_parts(parts: Sequence[GridPart]) -> str:
    """How many tiles or frames there are, in words.

    >>> from vlprune.models.internvl import tiled_shape
    >>> _describe_parts(tiled_shape(4, 3).parts), _describe_parts(tiled_shape(4, 2).parts)
    ('2 tiles and a thumbnail', '1 tile and a thumbnail')
    """
    count = sum(part.name != "thumbnail" for part in parts)
    return f"{count} {parts[0].name}{'s' * (count > 1)}" + " and a thumbnail" * (count < len(parts))


def _base_and_tiles(image: Image.Image, parts: Sequence[GridPart]) -> Sheet:
    """The image twice: coarsely, as the base view, and finely, as the tiles together, without their padding."""
    base, *tiles = parts
    pixels, (view, wall) = _mosaic([image] * 2, image.size, 1 if image.width > image.height else 2)
    # a tile's rows are as far apart, in numbers of tokens, as the wall of tiles is wide
    tall = next((tile for tile in tiles if tile.grid[0] > 1), None)
    across = int(tall.tokens[tall.grid[1]] - tall.tokens[0]) if tall else sum(tile.grid[1] for tile in tiles)
    down = sum(map(len, tiles)) // across
    wide, high = wall.width / across, wall.height / down
    cells = [Cell(view, base.grid, base.tokens.tolist(), "base")]
    for tile in tiles:
        y, x = divmod(int(tile.tokens[0]) - len(base), across)
        box = Box(wall.left + x * wide, wall.top + y * high, tile.grid[1] * wide, tile.grid[0] * high)
        cells.append(Cell(box, tile.grid, tile.tokens.tolist(), "tiles" if tile is tiles[0] else ""))
    return Sheet(pixels, cells, f"base view and {_describe_parts(tiles)}", view.width / image.width)


def _mosaic(images: Sequence[Image.Image | None], size: tuple[int, int], columns: int) -> tuple[np.ndarray, list[Box]]:
    """All images in the shape of `size`, in rows of `columns`, on white, and where each lies; None is a grey one."""
    import numpy as np

    rows = math.ceil(len(images) / columns)
    scale = SHEET_PIXELS / max(size[0] * columns, size[1] * rows)
    if len(images) == 1:
        scale = min(1.0, scale)
    width, height = (max(1, round(side * scale)) for side in size)
    gap = max(2, SHEET_PIXELS // 150)
    wide, high = columns * (width + gap) - gap, rows * (height + gap) - gap
    pixels = np.ones((high, wide, 3), dtype=np.float32)
    boxes = []
    for i, image in enumerate(images):
        y, x = divmod(i, columns)
        top, left = y * (height + gap), x * (width + gap)
        shown = 0.9 if image is None else np.asarray(image.convert("RGB").resize((width, height)), np.float32) / 255
        pixels[top : top + height, left : left + width] = shown
        boxes.append(Box(left, top, width, height))
    return pixels, boxes

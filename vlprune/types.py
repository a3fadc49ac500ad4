"""How the tokens of one image or video lie: on which grids, and with what between them."""

from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Part:
    """Tokens that lie on one grid: a whole "image", a "tile" of one, its "base" or "thumbnail", or a "frame".

    `grid` is (rows, columns); `tokens` (rows * columns,) are their numbers among the candidates, in reading order.
    """

    name: str
    grid: tuple[int, int]
    tokens: Tensor

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, eq=False)
class Shape:
    """One image or video in the prompt: `length` placeholders, of which a method may drop the `candidates` (n,).

    The others are structure (newlines, class tokens), which no method chooses or drops. `lines` (length,), where
    there is structure, numbers the line that each token belongs to: structure stays as long as a candidate of its
    line stays; structure of line −1 always stays. `parts` share the candidates out to tiles or frames. All tensors
    are on the CPU. Shapes are compared by identity: build them by a cached function.
    """

    kind: str
    length: int
    parts: tuple[Part, ...]
    candidates: Tensor
    lines: Tensor | None = None

    @property
    def n(self) -> int:
        """How many tokens a method may choose from."""
        return len(self.candidates)

    @property
    def structure(self) -> int:
        """How many tokens are structure."""
        return self.length - self.n

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of all candidates where they are one grid, or several of one width in a pile; else (1, n)."""
        rows, columns = sum(part.grid[0] for part in self.parts), self.parts[0].grid[1]
        same = all(part.grid[1] == columns for part in self.parts)
        in_order = all(bool((part.tokens.diff() == 1).all()) for part in self.parts)
        return (rows, columns) if same and in_order else (1, self.n)


@lru_cache(maxsize=256)
def stacked(kind: str, name: str, grid: tuple[int, int], count: int = 1, extra: int = 0) -> Shape:
    """`count` parts of one grid after each other, then `extra` structural tokens that always stay.

    >>> shape = stacked("video", "frame", (2, 3), count=4, extra=1)
    >>> shape.length, shape.n, shape.grid, len(shape.parts)
    (25, 24, (8, 3), 4)
    """
    size = grid[0] * grid[1]
    parts = tuple(Part(name, grid, torch.arange(i * size, (i + 1) * size)) for i in range(count))
    candidates = torch.arange(count * size)
    lines = torch.cat([candidates // size, torch.full((extra,), -1)]) if extra else None
    return Shape(kind, count * size + extra, parts, candidates, lines)


@lru_cache(maxsize=256)
def squares(kind: str, name: str, size: int, count: int = 1) -> Shape:
    """`count` parts of `size` tokens each, square where the size is a square, else a line.

    >>> squares("image", "image", 9).grid, squares("image", "image", 10).grid
    ((3, 3), (1, 10))
    """
    side = round(size**0.5)
    return stacked(kind, name, (side, side) if side * side == size else (1, size), count)

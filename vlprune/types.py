"""Types that all parts of the package share: how tokens lie, what a method gets, and what it returns."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class GridPart:
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
    parts: tuple[GridPart, ...]
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
def grid_shape(kind: str, name: str, grid: tuple[int, int], count: int = 1, extra: int = 0) -> Shape:
    """The shape of `count` parts of one grid, one after another, then `extra` structural tokens that always stay.

    >>> shape = grid_shape("video", "frame", (2, 3), count=4, extra=1)
    >>> shape.length, shape.n, shape.grid, len(shape.parts)
    (25, 24, (8, 3), 4)
    """
    size = grid[0] * grid[1]
    parts = tuple(GridPart(name, grid, torch.arange(i * size, (i + 1) * size)) for i in range(count))
    candidates = torch.arange(count * size)
    lines = torch.cat([candidates // size, torch.full((extra,), -1)]) if extra else None
    return Shape(kind, count * size + extra, parts, candidates, lines)


@lru_cache(maxsize=256)
def square_shape(kind: str, name: str, size: int, count: int = 1) -> Shape:
    """The shape of `count` parts of `size` tokens each, square where the size is a square number, else a line.

    >>> square_shape("image", "image", 9).grid, square_shape("image", "image", 10).grid
    ((3, 3), (1, 10))
    """
    side = round(size**0.5)
    return grid_shape(kind, name, (side, side) if side * side == size else (1, size), count)


@dataclass(frozen=True)
class TokenView:
    """The visual tokens of `B` images, tiles or frames of equal size, as a method sees them.

    `features` (B, n, d) are the tokens as they enter the LLM (after the projector), `grid` is (rows, columns)
    with rows * columns = n where the tokens lie on a grid, (1, n) where they lie on none, and `tower`
    (B, n, d_v) are the vision tower's hidden states of the layer that the model reads, None where the model does
    not expose them. With a budget per frame, `frames` neighbours in the batch are the frames of one video.

    A method that says `needs_attention` also gets, where the tower has them: `attention` (B, n), what each token
    receives at that layer, mean over heads, from the CLS token or, without one, from all tokens on average;
    `keys` (B, n, d_k), that layer's keys, mean over heads; `cls` (B, d_v), the CLS token's hidden state; and
    `project`, from tower states (B, k, d_v) to tokens (B, k, d).

    >>> import torch
    >>> view = TokenView(torch.zeros(1, 6, 8), grid=(2, 3))
    >>> view.n, view.grid
    (6, (2, 3))
    """

    features: Tensor
    grid: tuple[int, int]
    tower: Tensor | None = None
    attention: Tensor | None = None
    keys: Tensor | None = None
    cls: Tensor | None = None
    project: Callable[[Tensor], Tensor] | None = None
    frames: int = 1

    @property
    def n(self) -> int:
        """Visual tokens per image."""
        return self.features.shape[1]


@dataclass(frozen=True)
class Query:
    """The question of each of `B` images, in the space where relevance is measured.

    `image` (B, n, c) are the visual tokens and `text` (B, 1, c) the mean of the question's embedding in that
    space; relevance is `sign` times their cosine. `source` says whose space it is: "llm" or "clip". `tokens`
    is one (l, d) tensor per image, the LLM's own embeddings of the question's tokens; empty where the source
    is "clip".
    """

    image: Tensor
    text: Tensor
    sign: int
    source: str
    texts: tuple[str | None, ...]
    tokens: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Selection:
    """The tokens a method keeps, and the scores it kept them by. B images, n tokens, m kept.

    kept:        (B, m) int64, in the order in which they stand in the prompt, which is ascending for nearly all.
    order:       (B, k) int64, tokens in order of choice, and −1 where the greedy had stopped: an image may need fewer
                 than k. None for a method that has no order.
    redundancy:  (B, n) float32, high where other tokens say the same, or None.
    relevance:   (B, n) float32 in [0, 1], high where the question looks, or None.
    scores:      (B, n) float32, what the method ranked by, where neither of these two says it, or None.
    embeddings:  (B, m, d), features that take the place of the kept tokens' own, or None to keep those.
    gains:       (B, k) float32, what each choice of `order` added, 0 where that is −1. None where the method does not
                 say.
    sizes:       how many of each image's m are meant, where images keep different numbers, or None for all m.

    >>> import torch
    >>> Selection(kept=torch.tensor([[0, 2]])).kept.tolist()
    [[0, 2]]
    """

    kept: Tensor
    order: Tensor | None = None
    redundancy: Tensor | None = None
    relevance: Tensor | None = None
    scores: Tensor | None = None
    embeddings: Tensor | None = None
    gains: Tensor | None = None
    sizes: tuple[int, ...] | None = None

    @classmethod
    def from_order(cls, order: Tensor, *, relevance: Tensor | None = None, scores: Tensor | None = None) -> "Selection":
        """The selection that keeps the tokens `order` (B, m), which are in order of choice, as they stand in the image.

        >>> Selection.from_order(torch.tensor([[2, 0]])).kept.tolist()
        [[0, 2]]
        """
        return cls(kept=order.sort(dim=1).values, order=order, relevance=relevance, scores=scores)

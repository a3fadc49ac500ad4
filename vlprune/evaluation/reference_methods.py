"""Choices that know which question they are for: random ones drawn anew each time, and the oracle's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from vlprune.methods import Method, Random
from vlprune.types import Selection

if TYPE_CHECKING:
    from vlprune.evaluation.questions import Item
    from vlprune.types import Query, TokenView


@dataclass(frozen=True)
class Oracle(Method):
    """The ceiling: knows the scene, and keeps the asked things' tokens first, the other things' next.

    Things take turns, each with its tokens from its middle outwards; the background comes last, in a random order.
    """

    name: ClassVar[str] = "oracle"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        raise NotImplementedError("the oracle chooses for questions about drawn scenes: see `for_questions`.")


@dataclass(frozen=True)
class Fixed(Method):
    """The first tokens of an order that is given for each row of the batch."""

    orders: tuple[tuple[int, ...], ...] = ()
    name: ClassVar[str] = "fixed"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        rows = len(view.features)
        each = rows // len(self.orders)
        if each * len(self.orders) != rows:
            raise ValueError("images of several sizes in one batch cannot be told apart: pass batch=1.")
        order = torch.tensor([self.orders[i // each] for i in range(rows)])[:, : self.count(view.n)]
        order = order.to(view.features.device)
        return Selection(kept=order.sort(dim=1).values, order=order)


@dataclass(frozen=True)
class Draws(Method):
    """`Random` with a seed of its own for each row of the batch."""

    seeds: tuple[int, ...] = ()
    name: ClassVar[str] = "random"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        m, each = self.count(view.n), max(1, len(view.features) // len(self.seeds))
        orders = tuple(
            tuple(Random(keep=m, seed=seed).select(view, None).order[0].tolist())  # type: ignore[index]
            for seed in self.seeds
            for _ in range(each)
        )
        return Fixed(m, orders).select(view, None)


def for_questions(method: Method, items: Sequence[Item], seed: int) -> Method:
    """The method as it is used for these questions, one per row of a batch."""
    if isinstance(method, Oracle):
        return Fixed(method.keep, tuple(tuple(ideal_order(item)) for item in items))
    if type(method) is Random:
        return Draws(method.keep, tuple(method.seed + seed * 1_000_000 + item.number for item in items))
    return method


def evidence(item: Item, grid: int = 24) -> list[Tensor]:
    """The tokens on each thing that the question is about, from its middle outwards."""
    assert item.scene is not None
    tokens = _tokens_of_things(item, grid)
    return [tokens[i] for i in item.about]


def ideal_order(item: Item, grid: int = 24) -> list[int]:
    """All tokens of a drawn scene, those that the question needs first.

    >>> from vlprune.evaluation.questions import pocket_items
    >>> item = pocket_items("test", 1)[1]
    >>> order = ideal_order(item)
    >>> sorted(order) == list(range(576)), set(order[:3]) <= set(evidence(item)[0].tolist())
    (True, True)
    """
    tokens = _tokens_of_things(item, grid)
    asked = [tokens[i].tolist() for i in item.about]
    others = [part.tolist() for i, part in enumerate(tokens) if i not in item.about]
    order = _in_turns(asked) + _in_turns(others)
    rest = torch.randperm(grid * grid, generator=torch.Generator().manual_seed(item.number)).tolist()
    taken = set(order)
    return order + [token for token in rest if token not in taken]


def _in_turns(lists: Sequence[Sequence[int]]) -> list[int]:
    longest = max(map(len, lists), default=0)
    return [part[i] for i in range(longest) for part in lists if i < len(part)]


def _tokens_of_things(item: Item, grid: int) -> list[Tensor]:
    from vlprune.pocket.render import pack, thing_at
    from vlprune.pocket.world import SIZE

    if item.scene is None:
        raise ValueError(f"question {item.number} is about a picture, not about a drawn scene.")
    things, _ = pack([item.scene])
    which = thing_at(torch.from_numpy(things), grid)[0]
    line = (torch.arange(grid) + 0.5) * (SIZE / grid)
    found = []
    for i, thing in enumerate(item.scene.things):
        far = ((line[None] - thing.x) ** 2 + (line[:, None] - thing.y) ** 2).flatten()
        far = far.masked_fill(which != i, float("inf"))
        found.append(far.argsort(stable=True)[: int((which == i).sum())])
    return found

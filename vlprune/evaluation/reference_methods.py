"""Methods to compare others with: all tokens, ones drawn at random for each question, an oracle, one place alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from vlprune.evaluation.captioned_photos import PhotoQuestion
from vlprune.evaluation.questions import ImageQuestion
from vlprune.methods import GraphOnly, Method, Random, UniformGrid
from vlprune.selection import graph_scores
from vlprune.selection.numerics import ascending
from vlprune.types import Query, Selection, TokenView

ALL_TOKENS = "all tokens"  # what results call the model without pruning


def keep_all_tokens() -> Method:
    """A method that keeps everything: the answers of the plain model, bit for bit, by the way that pruned ones take."""
    return UniformGrid(keep=1.0)


@dataclass(frozen=True)
class Oracle(Method):
    """The ceiling: knows the scene, and keeps the asked things' tokens first, the other things' next.

    Things take turns, each with its tokens from its middle outwards; the background comes last, in a random order. Of
    a photograph, what was pasted on it and is asked about comes first.
    """

    name: ClassVar[str] = "oracle"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        raise NotImplementedError("the oracle chooses for questions about drawn scenes: see `method_for_questions`.")


@dataclass(frozen=True)
class AskedPlace(Method):
    """Keeps just the tokens on what is asked about, or with `inside=False` as many others at random; has no budget."""

    inside: bool = True
    name: ClassVar[str] = "place"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        raise NotImplementedError("the place is that of a question about a photograph: see `method_for_questions`.")


@dataclass(frozen=True)
class FixedOrder(Method):
    """Keeps the first tokens of an order that is given for each row of the batch."""

    orders: tuple[tuple[int, ...], ...] = ()
    name: ClassVar[str] = "fixed"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        rows = rows_of_images(view, len(self.orders))
        order = torch.tensor([self.orders[row] for row in rows])[:, : self.count(view.n)]
        order = order.to(view.features.device)
        return Selection(kept=order.sort(dim=1).values, order=order)


def rows_of_images(view: TokenView, rows: int) -> list[int]:
    """The row of the batch that each image of the view is in; `ValueError` where that cannot be told."""
    images = len(view.features)
    if images % rows:
        raise ValueError("images of several sizes in one batch cannot be told apart: pass batch=1.")
    return [i // (images // rows) for i in range(images)]


@dataclass(frozen=True)
class RandomPerRow(Method):
    """`Random` with a seed of its own for each row of the batch."""

    seeds: tuple[int, ...] = ()
    name: ClassVar[str] = "random"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        m, images_per_row = self.count(view.n), max(1, len(view.features) // len(self.seeds))
        orders = tuple(
            tuple(Random(keep=m, seed=seed).select(view, None).order[0].tolist())  # type: ignore[index]
            for seed in self.seeds
            for _ in range(images_per_row)
        )
        return FixedOrder(m, orders).select(view, None)


@dataclass(frozen=True)
class GraphAndRandom(GraphOnly):
    """The graph's least redundant tokens, and for a share of the budget others at random, with a seed for each row.

    The random ones are the first of `Random`'s that the graph did not take, so that with `share=1` all are `Random`'s.
    They are drawn from the least redundant part `among` of the image, or from as many tokens as the budget needs.
    """

    share: float = 0.5
    among: float = 1.0
    seeds: tuple[int, ...] = ()

    name: ClassVar[str] = "graph_and_random"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        m, n = self.count(view.n), view.n
        taken = m - int(self.share * m + 0.5)
        redundancy = graph_scores(view.features, tau=self.tau, gamma=self.gamma, graph=self.graph)
        orders = []
        for row, ranked in zip(rows_of_images(view, len(self.seeds)), ascending(redundancy).tolist()):
            drawn = Random(keep=n, seed=self.seeds[row]).select(view, None).order
            assert drawn is not None
            pool = set(ranked[taken : max(m, int(self.among * n))])
            orders.append([*ranked[:taken], *(token for token in drawn[0].tolist() if token in pool)][:m])
        return Selection.from_order(torch.tensor(orders, device=view.features.device))


def method_for_questions(method: Method, questions: Sequence[ImageQuestion], seed: int) -> Method:
    """The method to attach for a batch of these questions, one per row.

    The oracle becomes the order that it chose for each question, and what is random is drawn with a seed for each
    question. The places that `AskedPlace` keeps must be of one size.
    """
    if isinstance(method, AskedPlace):
        orders = [oracle_order(question) for question in questions]
        counts = {len(question.place) for question in questions if isinstance(question, PhotoQuestion)}
        (count,) = counts
        shown = [order[:count] if method.inside else order[count : 2 * count] for order in orders]
        return FixedOrder(count, tuple(map(tuple, shown)))
    if isinstance(method, Oracle):
        return FixedOrder(method.keep, tuple(tuple(oracle_order(question)) for question in questions))
    seeds = tuple(seed * 1_000_000 + question.number for question in questions)
    if isinstance(method, GraphAndRandom):
        return replace(method, seeds=seeds)
    if type(method) is Random:
        return RandomPerRow(method.keep, tuple(method.seed + one for one in seeds))
    return method


def evidence_tokens(question: ImageQuestion, grid: int = 24) -> list[Tensor]:
    """The tokens on each thing that the question is about, from its middle outwards."""
    assert question.scene is not None
    tokens = _tokens_of_things(question, grid)
    return [tokens[i] for i in question.about]


def oracle_order(question: ImageQuestion, grid: int = 24) -> list[int]:
    """All tokens of a drawn scene, or of a photograph with something pasted on it, those that are needed first.

    >>> from vlprune.evaluation.questions import pocket_questions
    >>> question = pocket_questions("test", 1)[1]
    >>> order = oracle_order(question)
    >>> sorted(order) == list(range(576)), set(order[:3]) <= set(evidence_tokens(question)[0].tolist())
    (True, True)
    """
    if isinstance(question, PhotoQuestion):
        order = _from_the_middle(question, grid)
    else:
        tokens = _tokens_of_things(question, grid)
        asked = [tokens[i].tolist() for i in question.about]
        others = [part.tolist() for i, part in enumerate(tokens) if i not in question.about]
        order = _interleave(asked) + _interleave(others)
    rest = torch.randperm(grid * grid, generator=torch.Generator().manual_seed(question.number)).tolist()
    taken = set(order)
    return order + [token for token in rest if token not in taken]


def _from_the_middle(question: PhotoQuestion, grid: int) -> list[int]:
    """The tokens on what is asked about, from its middle outwards."""
    if not question.place:
        raise ValueError(f"nobody knows where in the picture question {question.number} looks.")
    at = torch.tensor(question.place)
    rows, columns = (at // grid).float(), (at % grid).float()
    distance = (rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2
    ordered: list[int] = at[distance.argsort(stable=True)].tolist()
    return ordered


def _interleave(lists: Sequence[Sequence[int]]) -> list[int]:
    """The first of each list, then the second of each, and so on."""
    longest = max(map(len, lists), default=0)
    return [part[i] for i in range(longest) for part in lists if i < len(part)]


def _tokens_of_things(question: ImageQuestion, grid: int) -> list[Tensor]:
    """The tokens whose middle lies on each thing of the scene, from the thing's middle outwards."""
    from vlprune.pocket.render import pack_scenes, things_under_grid
    from vlprune.pocket.world import SIZE

    if question.scene is None:
        raise ValueError(f"question {question.number} is about a picture, not about a drawn scene.")
    things, _ = pack_scenes([question.scene])
    which = things_under_grid(torch.from_numpy(things), grid)[0]
    line = (torch.arange(grid) + 0.5) * (SIZE / grid)
    found = []
    for i, thing in enumerate(question.scene.things):
        distance = ((line[None] - thing.x) ** 2 + (line[:, None] - thing.y) ** 2).flatten()
        distance = distance.masked_fill(which != i, float("inf"))
        found.append(distance.argsort(stable=True)[: int((which == i).sum())])
    return found

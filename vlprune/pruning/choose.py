"""Let a method choose among the images and videos of one call."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from vlprune.budget import Budget
from vlprune.devices import Stopwatch, copy_to_device
from vlprune.methods.base import Method
from vlprune.record import Record
from vlprune.types import Selection, Shape, TokenView

if TYPE_CHECKING:
    from vlprune.pruning.prompt_images import Unit
    from vlprune.types import Query

    Ask = Callable[[TokenView, list[int]], Query | None]

SCORES = ("redundancy", "relevance", "scores")


def choose(
    method: Method,
    units: list[Unit],
    embeds: Tensor,
    drop: Tensor,
    places: Tensor,
    ask: Ask,
    project: Callable[[Tensor], Tensor],
    variable_length: bool,
) -> tuple[Tensor, list[Record]]:
    """One call of the method for all images of one shape (or all their tiles or frames of one size).

    `embeds` (B, L, d) is the merged prompt, `units` the images in it; `ask(view, rows)` gives the questions of the
    rows that the view's images lie in, `project(states)` the tokens of tower states. Sets `drop` (B, L) for the
    tokens that go, and `places` (B, L), each token's column, where the method re-orders what it keeps. Returns the
    embeddings, changed where the method changes them, and one record per image.
    """
    budget = Budget.of(method.keep)
    if budget.adaptive is not None and not method.adapts:
        raise ValueError(f"keep={budget}: {method.name} keeps a fixed number; script adapts it to the image.")
    records: list[Record] = []
    shapes: dict[Shape, list[Unit]] = {}
    for unit in units:
        shapes.setdefault(unit.vision.shape, []).append(unit)
    for shape, group in shapes.items():
        shares = budget.shares(shape.kind, [len(part) for part in shape.parts], variable_length)
        one = _Group(method, shape, group, embeds, project)
        one.choose(shares, ask)
        embeds = one.put(embeds, drop, places)
        records += one.records()
    return embeds, records


class _Group:
    """The images of one shape: their candidates' features (U, n, d), and what was chosen of them."""

    def __init__(
        self,
        method: Method,
        shape: Shape,
        units: list[Unit],
        embeds: Tensor,
        project: Callable[[Tensor], Tensor],
    ) -> None:
        self.method, self.shape, self.units, self.project = method, shape, units, project
        device = embeds.device
        self.rows = copy_to_device(torch.tensor([[unit.row] for unit in units]), device)
        self.columns = copy_to_device(torch.stack([unit.columns for unit in units]), device)
        self.candidates = _candidates(shape, device)
        self.features = embeds.detach()[self.rows, self.columns[:, self.candidates]]
        self.tower, self.attention, self.keys, self.cls = (
            self._stacked(name, device) for name in ("tower", "attention", "keys", "cls")
        )
        self.watch = Stopwatch(device, share=len(units))
        self.kept = torch.zeros(len(units), shape.n, dtype=torch.bool, device=device)
        self.after = [0] * len(units)
        self.order: Tensor | None = None
        self.gains: Tensor | None = None
        self.query: Query | None = None
        self.scores: dict[str, Tensor] = {}
        self.changes: list[tuple[Tensor, Selection]] = []

    def _stacked(self, name: str, device: torch.device) -> Tensor | None:
        """What the tower says of each image, (U, n, ...), if it says it of all."""
        values = [value for unit in self.units if (value := getattr(unit.vision, name)) is not None]
        return torch.stack(values).to(device) if len(values) == len(self.units) else None

    def choose(self, shares: int | list[int], ask: Ask) -> None:
        """Call the method on whole images, or on all their parts of one size at a time."""
        n, device = self.shape.n, self.kept.device
        calls: list[tuple[Tensor, tuple[int, int], int, list[int] | None]] = []
        if isinstance(shares, int):
            calls.append((_every(n, device), _grid(self.shape), shares, None))
        else:
            alike: dict[tuple[tuple[int, int], int], list[int]] = {}
            for i, (part, share) in enumerate(zip(self.shape.parts, shares)):
                alike.setdefault((part.grid, share), []).append(i)
            for (grid, share), parts in alike.items():
                calls.append((_tokens(self.shape, tuple(parts), device), grid, share, parts))
        with torch.no_grad():
            chosen = [self._call(*call, ask) for call in calls]
            for (tokens, *_), one in zip(calls, chosen):
                self._note(tokens, one)

    def _call(
        self, tokens: Tensor, grid: tuple[int, int], share: int, numbers: list[int] | None, ask: Ask
    ) -> Selection:
        """The method on the parts `tokens` (P, p), of these numbers, of every image; or on the whole of it."""
        parts, size = tokens.shape
        whole = size == self.shape.n  # then the order of choice is the image's own

        def of_parts(values: Tensor | None) -> Tensor | None:
            return values if whole or values is None else values[:, tokens].flatten(0, 1)

        with self.watch:
            cls = self.cls
            if cls is not None:
                if numbers is not None:
                    cls = cls[:, numbers].flatten(0, 1)
                else:  # the class token of what shows the whole image
                    cls = cls[:, 0] if self.shape.parts[0].name in ("image", "base") else None
            features = of_parts(self.features)
            assert features is not None
            view = TokenView(
                features,
                grid,
                of_parts(self.tower),
                of_parts(self.attention),
                of_parts(self.keys),
                cls,
                self.project,
                frames=parts if self.shape.kind == "video" else 1,
            )
        self.query = ask(view, [unit.row for unit in self.units for _ in range(parts)])
        with self.watch:
            method = copy.copy(self.method)  # not replace(): the settings were checked with the budget as it was given
            if not isinstance(self.method.keep, Budget) or self.method.keep.adaptive is None:
                object.__setattr__(method, "keep", share)
            chosen = method.select(view, self.query)
        expected = (len(self.units) * parts, share)
        if not isinstance(chosen, Selection) or (chosen.sizes is None and tuple(chosen.kept.shape) != expected):
            raise TypeError(f"method {self.method.name!r} must return a Selection with kept of shape {expected}.")
        return chosen

    def _note(self, tokens: Tensor, chosen: Selection) -> None:
        """What was chosen among the parts `tokens` (P, p) of every image."""
        images, (parts, size) = len(self.units), tokens.shape
        whole = size == self.shape.n
        at = chosen.kept  # (U * P, m), numbers among the image's candidates
        if not whole:
            at = tokens.repeat(images, 1).gather(1, at)
        self.kept.scatter_(1, at.view(images, -1), True)
        sizes = chosen.sizes or (chosen.kept.shape[1],) * len(at)
        for i, count in enumerate(sizes):
            self.after[i // parts] += count
        if whole:
            self.order, self.gains = chosen.order, chosen.gains
        for name in SCORES:
            values = getattr(chosen, name)
            if values is None:
                continue
            if whole:
                self.scores[name] = values
                continue
            if name not in self.scores:
                self.scores[name] = values.new_zeros(images, self.shape.n)
            self.scores[name][:, tokens.flatten()] = values.reshape(images, -1)
        if chosen.embeddings is not None or self.method.reorders:
            self.changes.append((at, chosen))

    def put(self, embeds: Tensor, drop: Tensor, places: Tensor) -> Tensor:
        """Write what was chosen into the prompt."""
        keep = torch.ones_like(self.columns, dtype=torch.bool)
        keep[:, self.candidates] = self.kept
        self.stayed = [self.shape.structure] * len(self.units)
        drop[self.rows, self.columns] = ~self._with_structure(keep)
        for at, chosen in self.changes:
            each = len(at) // len(self.units)
            rows = self.rows.repeat_interleave(each, dim=0).expand_as(at)
            columns = self.columns[:, self.candidates].repeat_interleave(each, dim=0)
            kept = columns.gather(1, at)
            real: Tensor | slice = slice(None)
            slots = kept
            if chosen.sizes is not None:
                sizes = copy_to_device(torch.tensor(chosen.sizes), at.device)[:, None]
                real = torch.arange(at.shape[1], device=at.device) < sizes
                slots = kept.masked_fill(~real, embeds.shape[1])
            if self.method.reorders:
                places[rows[real], kept[real]] = slots.sort(dim=1).values[real]
            if chosen.embeddings is not None:
                embeds = embeds.index_put((rows[real], kept[real]), chosen.embeddings.to(embeds.dtype)[real])
        return embeds

    def _with_structure(self, keep: Tensor) -> Tensor:
        """(U, length): structure stays while a candidate of its line stays."""
        structure = _structure(self.shape, keep.device)
        if structure is None:
            return keep
        alive = torch.zeros(len(keep), structure.total, dtype=torch.int32, device=keep.device)
        alive.index_add_(1, structure.of_candidates, self.kept.int())
        stays = structure.always | (alive[:, structure.lines] > 0)
        keep[:, structure.at] = stays
        self.stayed = stays.sum(dim=1).tolist()  # waits: how long the prompt is depends on what was chosen
        return keep

    def records(self) -> list[Record]:
        """One per image; after `put`."""
        kept = (~self.kept).int().argsort(dim=1, stable=True)
        return [self._record(i, unit, kept[i, : self.after[i]]) for i, unit in enumerate(self.units)]

    def _record(self, i: int, unit: Unit, kept: Tensor) -> Record:
        query, each = self.query, 0 if self.query is None else len(self.query.texts) // len(self.units)
        return Record(
            kept=kept,
            before=self.shape.n,
            after=self.after[i],
            grid=_grid(self.shape),
            row=unit.row,
            image=unit.image,
            order=None if self.order is None else self.order[i],
            gains=None if self.gains is None else self.gains[i],
            redundancy=self._score("redundancy", i),
            relevance=self._score("relevance", i),
            ranking=self._score("scores", i),
            structure=(self.shape.structure, self.stayed[i]),
            parts=self.shape.parts,
            kind=self.shape.kind,
            query=query.texts[i * each] if query is not None else None,
            source=query.source if query is not None else None,
            sign=query.sign if query is not None else None,
            stopwatch=self.watch,
        )

    def _score(self, name: str, i: int) -> Tensor | None:
        return self.scores[name][i] if name in self.scores else None


class _Structure(NamedTuple):
    """Of a shape whose structure may go: where it lies, the line of each, whether it stays anyway, and how many lines
    there are; and the line of each candidate."""

    at: Tensor
    lines: Tensor
    always: Tensor
    of_candidates: Tensor
    total: int


@lru_cache(maxsize=64)
def _grid(shape: Shape) -> tuple[int, int]:
    return shape.grid


# What depends on the shape alone stays on the device: to copy it there, one has to wait for the device.
@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _candidates(shape: Shape, device: torch.device) -> Tensor:
    return shape.candidates.to(device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _every(n: int, device: torch.device) -> Tensor:
    return torch.arange(n, device=device)[None]


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _tokens(shape: Shape, parts: tuple[int, ...], device: torch.device) -> Tensor:
    """(P, p): which of the candidates the parts are, all of one size."""
    return torch.stack([shape.parts[i].tokens for i in parts]).to(device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _structure(shape: Shape, device: torch.device) -> _Structure | None:
    """None where all structure stays."""
    if shape.lines is None:
        return None
    other = torch.ones(shape.length, dtype=torch.bool)
    other[shape.candidates] = False
    lines = shape.lines[other]
    if not bool((lines >= 0).any()):
        return None
    of_candidates = shape.lines[shape.candidates].clamp(min=0).to(device)
    at, line, always = (part.to(device) for part in (other.nonzero()[:, 0], lines.clamp(min=0), lines < 0))
    return _Structure(at, line, always, of_candidates, int(shape.lines.max()) + 1)

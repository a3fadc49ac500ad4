"""Let a method choose among the images and videos of one prompt."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from vlprune.budget import Budget
from vlprune.devices import Stopwatch, copy_to_device
from vlprune.methods.base import Method
from vlprune.pruning.check_selection import call_select, check_selection
from vlprune.pruning.prompt_images import PromptImage
from vlprune.record import Record
from vlprune.types import Query, Selection, Shape, TokenView

#: The scores of a selection that a record keeps, one per token.
SCORES = ("redundancy", "relevance", "scores")

QueryFor = Callable[[TokenView, list[int]], Query | None]
"""From a view, and the batch rows that its images lie in, to their questions."""


@dataclass
class Choice:
    """What is to become of a prompt of B rows and L columns.

    `embeds` (B, L, d) are its embeddings, changed where the method changes them. `drop` (B, L) is True for tokens that
    go. `order` (B, L) is each token's column, or another token's where the method re-orders what it keeps. There is one
    record per image.
    """

    embeds: Tensor
    drop: Tensor
    order: Tensor
    records: list[Record] = field(default_factory=list)


def choose_tokens(
    method: Method,
    images: list[PromptImage],
    ids: Tensor,
    embeds: Tensor,
    query_for: QueryFor,
    project: Callable[[Tensor], Tensor],
    variable_length: bool,
) -> Choice:
    """What the method keeps: one call of it for all images of one shape (or all their tiles or frames of one size).

    `ids` (B, L) is the prompt, `embeds` (B, L, d) the same with the `images` merged in. `project(states)` makes tokens
    of the vision tower's states. `variable_length` says whether images may differ in their number of tokens.
    """
    budget = Budget.of(method.keep)
    if budget.adaptive is not None and not method.adapts:
        raise ValueError(f"keep={budget}: {method.name} keeps a fixed number; script_plus adapts it to the image.")
    drop = torch.zeros_like(ids, dtype=torch.bool)
    order = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
    choice = Choice(embeds, drop, order)
    shapes: dict[Shape, list[PromptImage]] = {}
    for image in images:
        shapes.setdefault(image.encoded.shape, []).append(image)
    for shape, alike in shapes.items():
        shares = budget.shares(shape.kind, [len(part) for part in shape.parts], variable_length)
        group = _ImageGroup(method, shape, alike, choice.embeds, project)
        group.select(shares, query_for)
        group.apply(choice)
    return choice


class _PartsCall(NamedTuple):
    """One call of a method: on the parts `tokens` (P, p) of every image, each on a grid, to keep `share` of each.

    `numbers` are the parts' numbers; None for the whole image in one piece.
    """

    tokens: Tensor
    grid: tuple[int, int]
    share: int
    numbers: list[int] | None


class _ImageGroup:
    """U images of one shape: their candidates' features (U, n, d), and what the method selects of them."""

    def __init__(
        self,
        method: Method,
        shape: Shape,
        images: list[PromptImage],
        embeds: Tensor,
        project: Callable[[Tensor], Tensor],
    ) -> None:
        self.method, self.shape, self.images, self.project = method, shape, images, project
        device = embeds.device
        self.rows = copy_to_device(torch.tensor([[image.row] for image in images]), device)
        self.columns = copy_to_device(torch.stack([image.columns for image in images]), device)
        self.candidates = _candidates(shape, device)
        self.features = embeds.detach()[self.rows, self.columns[:, self.candidates]]
        self.tower, self.attention, self.keys, self.cls = (
            self._stack_tower_values(name, device) for name in ("tower", "attention", "keys", "cls")
        )
        self.watch = Stopwatch(device, share=len(images))
        self.kept = torch.zeros(len(images), shape.n, dtype=torch.bool, device=device)
        self.counts = [0] * len(images)
        self.order: Tensor | None = None
        self.gains: Tensor | None = None
        self.query: Query | None = None
        self.scores: dict[str, Tensor] = {}
        self.changes: list[tuple[Tensor, Selection]] = []

    def _stack_tower_values(self, name: str, device: torch.device) -> Tensor | None:
        """(U, n, ...) what the tower says of each image under this name; None unless it says it of all."""
        values = [value for image in self.images if (value := getattr(image.encoded, name)) is not None]
        return torch.stack(values).to(device) if len(values) == len(self.images) else None

    # --- selecting ---

    def select(self, shares: int | list[int], query_for: QueryFor) -> None:
        """Call the method on whole images, or on all their parts of one size at a time."""
        calls = self._calls(shares)
        with torch.no_grad():
            selections = [self._call(call, query_for) for call in calls]
            for call, selection in zip(calls, selections):
                self._add(call.tokens, selection)

    def _calls(self, shares: int | list[int]) -> list[_PartsCall]:
        device = self.kept.device
        if isinstance(shares, int):
            return [_PartsCall(_every_token(self.shape.n, device), _grid(self.shape), shares, None)]
        alike: dict[tuple[tuple[int, int], int], list[int]] = {}
        for i, (part, share) in enumerate(zip(self.shape.parts, shares)):
            alike.setdefault((part.grid, share), []).append(i)
        return [
            _PartsCall(_part_tokens(self.shape, tuple(parts), device), grid, share, parts)
            for (grid, share), parts in alike.items()
        ]

    def _call(self, call: _PartsCall, query_for: QueryFor) -> Selection:
        """What the method selects in one call."""
        parts = len(call.tokens)
        with self.watch:
            view = self._view(call)
        self.query = query_for(view, [image.row for image in self.images for _ in range(parts)])
        with self.watch:
            method = copy.copy(self.method)  # not replace(): the settings were checked with the budget as it was given
            if not isinstance(self.method.keep, Budget) or self.method.keep.adaptive is None:
                object.__setattr__(method, "keep", call.share)
            selection = call_select(method, view, self.query)
        check_selection(method, selection, view, call.share)
        return selection

    def _view(self, call: _PartsCall) -> TokenView:
        """The images, or their parts, as a method sees them."""
        parts, size = call.tokens.shape
        whole = size == self.shape.n  # then the order of choice is the image's own

        def of_parts(values: Tensor | None) -> Tensor | None:
            return values if whole or values is None else values[:, call.tokens].flatten(0, 1)

        cls = self.cls
        if cls is not None:
            if call.numbers is not None:
                cls = cls[:, call.numbers].flatten(0, 1)
            else:  # the class token of what shows the whole image
                cls = cls[:, 0] if self.shape.parts[0].name in ("image", "base") else None
        features = of_parts(self.features)
        assert features is not None
        return TokenView(
            features,
            call.grid,
            of_parts(self.tower),
            of_parts(self.attention),
            of_parts(self.keys),
            cls,
            self.project,
            frames=parts if self.shape.kind == "video" else 1,
        )

    def _add(self, tokens: Tensor, selection: Selection) -> None:
        """Add what was selected among the parts `tokens` (P, p) of every image."""
        images, (parts, size) = len(self.images), tokens.shape
        whole = size == self.shape.n
        at = selection.kept  # (U * P, m), numbers among the image's candidates
        if selection.sizes is not None:  # what stands behind a row's size does not count: its first again
            at = torch.where(_within(selection.sizes, at), at, at[:, :1])
        if not whole:
            at = tokens.repeat(images, 1).gather(1, at)
        self.kept.scatter_(1, at.view(images, -1), True)
        sizes = selection.sizes or (selection.kept.shape[1],) * len(at)
        for i, count in enumerate(sizes):
            self.counts[i // parts] += count
        if whole:
            self.order, self.gains = selection.order, selection.gains
        for name in SCORES:
            values = getattr(selection, name)
            if values is None:
                continue
            if whole:
                self.scores[name] = values
                continue
            if name not in self.scores:
                self.scores[name] = values.new_zeros(images, self.shape.n)
            self.scores[name][:, tokens.flatten()] = values.reshape(images, -1)
        if selection.embeddings is not None or self.method.reorders:
            self.changes.append((at, selection))

    # --- what it means for the prompt ---

    def apply(self, choice: Choice) -> None:
        """Write what was selected into the prompt's choice."""
        keep = torch.ones_like(self.columns, dtype=torch.bool)
        keep[:, self.candidates] = self.kept
        structure = _structure(self.shape, keep.device)
        left = [self.shape.structure] * len(self.images)
        if structure is not None:
            stays = self._staying_structure(structure)
            keep[:, structure.at] = stays
            left = stays.sum(dim=1).tolist()  # waits: how long the prompt is depends on what was chosen
        choice.drop[self.rows, self.columns] = ~keep
        for at, selection in self.changes:
            self._apply_changes(at, selection, choice)
        kept = (~self.kept).int().argsort(dim=1, stable=True)
        for i, image in enumerate(self.images):
            choice.records.append(self._record(i, image, kept[i, : self.counts[i]], left[i]))

    def _apply_changes(self, at: Tensor, selection: Selection, choice: Choice) -> None:
        """New embeddings, and another order, of the kept tokens `at` (U * P, m)."""
        each = len(at) // len(self.images)
        rows = self.rows.repeat_interleave(each, dim=0).expand_as(at)
        columns = self.columns[:, self.candidates].repeat_interleave(each, dim=0)
        kept = columns.gather(1, at)
        real: Tensor | slice = slice(None)
        slots = kept
        if selection.sizes is not None:
            real = _within(selection.sizes, at)
            slots = kept.masked_fill(~real, choice.embeds.shape[1])
        if self.method.reorders:
            choice.order[rows[real], kept[real]] = slots.sort(dim=1).values[real]
        if selection.embeddings is not None:
            new = selection.embeddings.to(choice.embeds.dtype)[real]
            choice.embeds = choice.embeds.index_put((rows[real], kept[real]), new)

    def _staying_structure(self, structure: "_Structure") -> Tensor:
        """(U, structural tokens) True while a candidate of their line stays."""
        alive = torch.zeros(len(self.kept), structure.total, dtype=torch.int32, device=self.kept.device)
        alive.index_add_(1, structure.of_candidates, self.kept.int())
        return structure.always | (alive[:, structure.lines] > 0)

    def _record(self, i: int, image: PromptImage, kept: Tensor, structure_left: int) -> Record:
        query, each = self.query, 0 if self.query is None else len(self.query.texts) // len(self.images)
        scores = {name: values[i] for name, values in self.scores.items()}
        return Record(
            kept=kept,
            before=self.shape.n,
            after=self.counts[i],
            grid=_grid(self.shape),
            row=image.row,
            image=image.image,
            order=None if self.order is None else self.order[i],
            gains=None if self.gains is None else self.gains[i],
            redundancy=scores.get("redundancy"),
            relevance=scores.get("relevance"),
            ranking=scores.get("scores"),
            structure=(self.shape.structure, structure_left),
            parts=self.shape.parts,
            kind=self.shape.kind,
            query=query.texts[i * each] if query is not None else None,
            source=query.source if query is not None else None,
            sign=query.sign if query is not None else None,
            stopwatch=self.watch,
        )


def _within(sizes: Sequence[int], at: Tensor) -> Tensor:
    """(rows, m) True for the first `sizes[b]` of each row of `at` (rows, m)."""
    counts = copy_to_device(torch.tensor(sizes), at.device)[:, None]
    return torch.arange(at.shape[1], device=at.device) < counts


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
def _every_token(n: int, device: torch.device) -> Tensor:
    return torch.arange(n, device=device)[None]


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _part_tokens(shape: Shape, parts: tuple[int, ...], device: torch.device) -> Tensor:
    """(P, p): which of the candidates the parts are, all of one size."""
    return torch.stack([shape.parts[i].tokens for i in parts]).to(device)


@lru_cache(maxsize=64)
@torch.inference_mode(False)
def _structure(shape: Shape, device: torch.device) -> _Structure | None:
    """Where a shape's structure lies; None where all of it stays."""
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

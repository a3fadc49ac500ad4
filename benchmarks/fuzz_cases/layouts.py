"""Layouts against lists that are shortened one token at a time."""

import random
from itertools import pairwise
from typing import Any

import torch

from fuzz_cases.expectations import expect


def layout_case(draw: random.Random) -> str:
    from vlprune.pruning.layout import cached_beginning, drop_columns, join_layouts

    rows, side = draw.randint(1, 4), draw.choice(["left", "right", "none"])
    lengths = [draw.randint(1, 14) for _ in range(rows)]
    if side == "none":
        lengths = [max(lengths)] * rows
    width = max(lengths) + draw.choice([0, 0, 2])  # padding that all rows share
    if side == "none":
        width = max(lengths)
    ids, mask, drop, order = _drawn_rows(draw, lengths, width, side)
    layout, wanted = _shortened(drop_columns, ids, mask, drop, order)
    _check_layout(layout, wanted, mask, drop)
    if (side != "left" and len(set(lengths)) > 1) or draw.random() < 0.5:
        return f"{side}, one turn"
    # a second turn: what was generated, then new columns, of which some go
    said, new = draw.randint(0, 3), draw.randint(1, 8)
    spoken = torch.tensor([[draw.randint(500, 599) for _ in range(said)] for _ in range(rows)], dtype=torch.long)
    more, more_mask, more_drop, more_order = _drawn_rows(draw, [new] * rows, new, "none")
    whole = torch.cat([ids, spoken, more], dim=1)
    whole_mask = torch.cat([mask, torch.ones_like(spoken), more_mask], dim=1)
    held = layout.after + (draw.randint(0, said) if said else 0)
    first = cached_beginning(layout, whole, whole_mask, held)
    start = first.before
    gone = torch.cat([torch.zeros(rows, ids.shape[1] + said, dtype=torch.bool), more_drop], dim=1)[:, start:]
    places = torch.cat([torch.arange(ids.shape[1] + said).repeat(rows, 1), more_order + ids.shape[1] + said], dim=1)
    rest, tail = _shortened(drop_columns, whole[:, start:], whole_mask[:, start:], gone, places[:, start:] - start)
    both = join_layouts(first, rest, whole)
    begun = held - layout.after
    front = [words + row[:begun] for words, row in zip(wanted, spoken.tolist())]
    expect(_words(both) == [a + b for a, b in zip(front, tail)], "the second turn is not what lists say")
    return f"{side}, two turns"


def _drawn_rows(draw: random.Random, lengths: list[int], width: int, side: str) -> tuple[torch.Tensor, ...]:
    """Ids, a mask, what to drop of them, and an order in which some kept ones have changed places."""
    rows = len(lengths)
    ids, mask = torch.zeros(rows, width, dtype=torch.long), torch.zeros(rows, width, dtype=torch.long)
    drop, order = torch.zeros(rows, width, dtype=torch.bool), torch.arange(width).repeat(rows, 1)
    for b, length in enumerate(lengths):
        first = width - length if side == "left" else 0
        columns = list(range(first, first + length))
        ids[b, columns] = torch.tensor([draw.randint(1, 499) for _ in columns])
        mask[b, columns] = 1
        image = [c for c in columns if draw.random() < draw.choice([0.0, 0.5, 0.9])]
        for c in image[: len(columns) - 1]:
            drop[b, c] = draw.random() < 0.6
        left = [c for c in image if not drop[b, c]]
        if draw.random() < 0.2:
            moved = left[:]
            draw.shuffle(moved)
            order[b, left] = torch.tensor(moved, dtype=torch.long)
    return ids, mask, drop, order


def _shortened(drop_columns: Any, ids: Any, mask: Any, drop: Any, order: Any) -> tuple[Any, list[list[int]]]:
    """The layout, and what each row says by a list that loses one token at a time.

    Where nothing is lost at all, nothing changes places either: keeping all tokens is the plain model.
    """
    lost, real = drop.sum(1).tolist(), mask.sum(1).tolist()
    wanted = []
    for b in range(len(ids)):
        stay = [c for c in range(ids.shape[1]) if mask[b, c] and not drop[b, c]]
        left = [(int(order[b, c]) if any(lost) else c, int(ids[b, c])) for c in stay]
        wanted.append([word for _, word in sorted(left)])
    return drop_columns(ids, mask, drop, order, lost, real), wanted


def _words(layout: Any) -> list[list[int]]:
    """The real tokens of each row of a short prompt."""
    ids = layout.gather(layout.ids)
    return [[int(word) for word, on in zip(row, mask) if on] for row, mask in zip(ids, layout.mask)]


def _check_layout(layout: Any, wanted: list[list[int]], mask: Any, drop: Any) -> None:
    expect(_words(layout) == wanted, f"{_words(layout)} is not {wanted}")
    expect(layout.fillers or bool(layout.mask.all()), "there are fillers, and the layout denies it")
    if bool(drop.any()):
        expect(torch.equal(layout.dropped(mask), drop & mask.bool()), "other tokens are gone")
    for row in layout.mask.tolist():  # padding lies on one side
        expect(sum(a != b for a, b in pairwise(row)) <= 1 or not layout.fillers, f"holes in {row}")
    places = torch.arange(mask.shape[1]).repeat(len(mask), 1)
    for renumber in (False, True):
        got = layout.positions(mask, places, renumber)
        for b in range(len(mask)):
            for t in range(layout.after):
                if layout.mask[b, t]:
                    column = int(layout.index[b, t])
                    before = int((drop[b, : column + 1] & mask[b, : column + 1].bool()).sum()) if renumber else 0
                    expect(int(got[b, t]) == column - before, "a position is wrong")

"""Let a method choose among the images of one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vlprune.methods.base import Method
from vlprune.models.base import TokenView, Vision
from vlprune.record import Record, Stopwatch
from vlprune.selection import Selection

if TYPE_CHECKING:
    from vlprune.models.units import Unit
    from vlprune.query import Query


def choose(
    method: Method,
    units: list[Unit],
    visions: list[Vision],
    embeds: Tensor,
    drop: Tensor,
    grid: Callable[[int], tuple[int, int]],
    ask: Callable[[TokenView, list[int]], Query | None],
) -> tuple[Tensor, list[Record]]:
    """One call of the method for all images of equal size.

    `embeds` (B, L, d) is the merged prompt, `units` and `visions` the images in it; `ask(view, rows)` gives
    the questions of the rows that the view's images lie in. Sets `drop` (B, L) for the tokens that were not
    chosen. Returns the embeddings, changed where the method changes them, and one record per image.
    """
    records: list[Record] = []
    for n in sorted({len(unit.columns) for unit in units}):
        group = [i for i, unit in enumerate(units) if len(unit.columns) == n]
        rows = torch.tensor([[units[i].row] for i in group], device=embeds.device)
        columns = torch.stack([units[i].columns for i in group]).to(embeds.device)
        towers = [tower for i in group if (tower := visions[i].tower) is not None]
        with torch.no_grad():
            tower = torch.stack(towers).to(embeds.device) if len(towers) == len(group) else None
            view = TokenView(embeds.detach()[rows, columns], grid(n), tower)
            watch = Stopwatch(embeds.device, share=len(group))
            watch.start()
            query = ask(view, [units[i].row for i in group])
            chosen = method.select(view, query)
            watch.stop()
        expected = (len(group), method.count(n))
        if not isinstance(chosen, Selection) or tuple(chosen.kept.shape) != expected:
            raise TypeError(f"method {method.name!r} must return a Selection with kept of shape {expected}.")
        kept = columns.gather(1, chosen.kept)
        drop[rows, columns] = True
        drop[rows, kept] = False
        if chosen.embeddings is not None:
            embeds = embeds.index_put((rows.expand_as(kept), kept), chosen.embeddings.to(embeds.dtype))
        records += [_record(units[i], j, view, query, chosen, watch) for j, i in enumerate(group)]
    return embeds, records


def _record(
    unit: Unit, place: int, view: TokenView, query: Query | None, chosen: Selection, watch: Stopwatch
) -> Record:
    def one(scores: Tensor | None) -> Tensor | None:
        return None if scores is None else scores[place]

    return Record(
        kept=chosen.kept[place],
        before=view.n,
        after=chosen.kept.shape[1],
        grid=view.grid,
        row=unit.row,
        image=unit.image,
        order=one(chosen.order),
        redundancy=one(chosen.redundancy),
        relevance=one(chosen.relevance),
        query=query.texts[place] if query is not None else None,
        source=query.source if query is not None else None,
        sign=query.sign if query is not None else None,
        stopwatch=watch,
    )

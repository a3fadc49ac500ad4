"""Pictures of one image: where it is redundant, where the question looks, the tokens kept in order; by one or many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vlprune.media.outputs import picture_metadata

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image
    from torch import Tensor

    from vlprune.record import Record
    from vlprune.show.sheet import Sheet

MAPS = {
    "redundancy": ("redundancy", "magma"),
    "relevance": ("relevance to the question", "viridis"),
    "ranking": ("score to rank by", "cividis"),
}
ORDER = "plasma"
NUMBERED = 9  # so many of the first choices carry their number
SIDE = 2.9  # inches of a panel
ABREAST = 5  # panels of a contact sheet in a row


class Mark(NamedTuple):
    """A circle to draw on the image, in its pixels: what a question is about."""

    x: float
    y: float
    radius: float


def picture(
    image: Image.Image | Sequence[Image.Image],
    records: Record | Sequence[Record],
    *,
    titles: Sequence[str] | None = None,
    marks: Sequence[Sequence[Mark]] | None = None,
) -> Figure:
    """Draw a strip of panels per record; all records are of the same image, given as the model saw it (`as_seen`).

    Of a video, or of an image in tiles, `image` may be one for each of the record's parts: they make a contact sheet,
    of 16 frames at most. A map that a method has no scores for is left out. `titles` and `marks` are one per record; a
    title is by default the record's question.

    >>> import torch
    >>> from PIL import Image
    >>> from vlprune.record import Record
    >>> record = Record(kept=torch.tensor([0, 3]), before=4, after=2, grid=(2, 2), relevance=torch.rand(4))
    >>> len(picture(Image.new("RGB", (32, 32)), record).axes)   # image, relevance and kept, and a colour bar for one
    4
    """
    from matplotlib.figure import Figure

    from vlprune.show.sheet import lay_out

    strips = list(records) if isinstance(records, Sequence) else [records]
    if not strips:
        raise ValueError("records is empty: pass at least one Record.")
    for name, given in (("titles", titles), ("marks", marks)):
        if given is not None and len(given) != len(strips):
            raise ValueError(f"{name} has {len(given)} entries for {len(strips)} records: pass one per record.")
    maps = [name for name in MAPS if any(getattr(record, name) is not None for record in strips)]
    sheets = [lay_out(image, record) for record in strips]
    # one image has its panels in a row; small tiles and frames need larger panels, two in a row
    several = any(sheet.several for sheet in sheets)
    columns, side = (2, 2 * SIDE) if several else (2 + len(maps), SIDE)
    rows = -(-(2 + len(maps)) // columns)
    size = (side * columns, (_height(sheets[0], side) * rows + 0.55) * len(strips))
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    drawn = figure.subfigures(len(strips), 1, squeeze=False)[:, 0]
    for i, (strip, record, sheet) in enumerate(zip(drawn, strips, sheets)):
        title = titles[i] if titles is not None else record.query
        if title:
            strip.suptitle(_plain(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
        panels = iter(strip.subplots(rows, columns).flat)
        _image(next(panels), sheet, marks[i] if marks is not None else ())
        for name in maps:
            _map(next(panels), sheet, getattr(record, name), name)
        _kept(next(panels), sheet, record)
        for spare in panels:
            spare.set_axis_off()
    return figure


def contact_sheet(
    image: Image.Image | Sequence[Image.Image],
    records: Mapping[str, Record],
    *,
    title: str = "",
    titles: Mapping[str, str] | None = None,
) -> Figure:
    """What each of several methods keeps of one image, side by side; below, the scores that they went by.

    `records` are by the method's name, `image` is as in `picture`; `titles` are panels' titles by the same names, and
    "" is that of the image itself. Scores that several methods share are drawn once.

    >>> import torch
    >>> from PIL import Image
    >>> from vlprune.record import Record
    >>> one = Record(kept=torch.tensor([0, 3]), before=4, after=2, grid=(2, 2), relevance=torch.rand(4))
    >>> drawn = contact_sheet(Image.new("RGB", (32, 32)), {"script": one, "cdpruner": one})
    >>> [axes.get_title(loc="left") for axes in drawn.axes][:4]
    ['image', 'script', 'cdpruner', 'relevance to the question:\\nscript, cdpruner']
    """
    from matplotlib.figure import Figure

    from vlprune.show.sheet import lay_out

    if not records:
        raise ValueError("records is empty: pass at least one Record.")
    titles, maps = titles or {}, _shared_maps(records)
    sheets = {name: lay_out(image, record) for name, record in records.items()}
    sheet = next(iter(sheets.values()))
    abreast, side = (4, 1.3 * SIDE) if sheet.several else (ABREAST, 0.85 * SIDE)
    columns = min(abreast, 1 + len(records))
    rows = [-(-count // columns) for count in (1 + len(records), len(maps)) if count]
    height = (_height(sheet, side) + 0.4) * sum(rows)
    figure = Figure(figsize=(side * columns, height + 0.4), layout="constrained", facecolor="white")
    blocks = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=rows)[:, 0]
    panels = [iter(block.subplots(count, columns, squeeze=False).flat) for block, count in zip(blocks, rows)]
    if title:
        figure.suptitle(_plain(title), x=0.01, ha="left", fontsize=12, fontweight="bold")
    _image(next(panels[0]), sheet, (), titles.get(""))
    for name, record in records.items():
        _kept(next(panels[0]), sheets[name], record, titles.get(name, name))
    for kind, scores, names in maps:
        _map(next(panels[1]), sheet, scores, kind, names)
    for block in panels:
        for spare in block:
            spare.set_axis_off()
    return figure


def _shared_maps(records: Mapping[str, Record]) -> list[tuple[str, Tensor, list[str]]]:
    """All different scores, each with its kind and the names of the methods that went by it."""
    found: list[tuple[str, Tensor, list[str]]] = []
    for kind in MAPS:
        for name, record in records.items():
            scores = getattr(record, kind)
            if scores is None:
                continue
            same = (names for other, known, names in found if other == kind and scores.float().allclose(known.float()))
            names = next(same, None)
            if names is None:
                found.append((kind, scores, [name]))
            else:
                names.append(name)
    return found


def _height(sheet: Sheet, side: float) -> float:
    """Inches of a panel that is `side` wide."""
    high, wide, _ = sheet.pixels.shape
    return side * min(2.0, max(0.4, high / wide))


def save_picture(
    path: str | Path,
    image: Image.Image | Sequence[Image.Image],
    records: Record | Sequence[Record],
    **options: Any,
) -> None:
    """Write `picture(image, records, ...)` to a file, in the format that its name ends in."""
    picture(image, records, **options).savefig(path, dpi=110, **picture_metadata(path))


def save_contact_sheet(
    path: str | Path, image: Image.Image | Sequence[Image.Image], records: Mapping[str, Record], **options: Any
) -> None:
    """Write `contact_sheet(image, records, ...)` to a file, in the format that its name ends in."""
    contact_sheet(image, records, **options).savefig(path, dpi=110, **picture_metadata(path))


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # matplotlib would read what is between two as a formula


def _frame(axes: Axes, sheet: Sheet, title: str, labels: Sequence[str] = ()) -> None:
    from matplotlib.patheffects import withStroke

    high, wide, _ = sheet.pixels.shape
    axes.set_xlim(0, wide)
    axes.set_ylim(high, 0)
    axes.set_title(_plain(title), fontsize=9, loc="left")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    outline = [withStroke(linewidth=2, foreground="white")]
    for cell, label in zip(sheet.cells, labels):
        axes.text(cell.box.left + 4, cell.box.top + 4, label, va="top", fontsize=7, path_effects=outline)


def _canvas(axes: Axes, pixels: np.ndarray, **options: Any) -> None:
    high, wide = pixels.shape[:2]
    axes.imshow(pixels, extent=(0, wide, high, 0), interpolation="none", **options)


def _image(axes: Axes, sheet: Sheet, marks: Sequence[Mark], title: str | None = None) -> None:
    from matplotlib.patches import Circle

    _canvas(axes, sheet.pixels)
    for mark in marks:
        x, y, radius = (sheet.scale * value for value in mark)
        for color, width in (("black", 2.6), ("white", 1.3)):
            axes.add_patch(Circle((x, y), radius, fill=False, color=color, lw=width))
    title = title or (f"{sheet.title}, with what is asked about" if marks else sheet.title)
    _frame(axes, sheet, title, [cell.label for cell in sheet.cells])


def _map(axes: Axes, sheet: Sheet, scores: Tensor | None, name: str, methods: Sequence[str] = ()) -> None:
    import textwrap

    from matplotlib.patches import Rectangle

    title, colors = MAPS[name]
    if methods:
        title += ":\n" + textwrap.fill(", ".join(methods), 28)
    if scores is None:
        _frame(axes, sheet, f"no {name}")
        axes.set_facecolor("0.95")
        return
    _canvas(axes, sheet.pixels.mean(axis=2), cmap="gray", vmin=0, vmax=1)
    values = scores.detach().float().cpu().numpy()
    for cell in sheet.cells:
        left, top, wide, high = cell.box
        shown = axes.imshow(
            values[cell.tokens].reshape(cell.grid),
            cmap=colors,
            vmin=values.min(),
            vmax=values.max(),
            alpha=0.78,
            extent=(left, left + wide, top + high, top),
            interpolation="nearest",
        )
        if sheet.several:
            axes.add_patch(Rectangle((left, top), wide, high, fill=False, color="white", lw=1.2))
    bar: Any = axes.figure.colorbar(shown, ax=axes, shrink=0.75, pad=0.02, aspect=25)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.outline.set_visible(False)
    if bar.solids is not None:
        bar.solids.set_alpha(1)
    _frame(axes, sheet, title)


def _kept(axes: Axes, sheet: Sheet, record: Record, title: str | None = None) -> None:
    """The kept patches in full colour on a faded image, framed by when they were chosen.

    With a title, the scale of the frames' colours is left out.
    """
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    kept = set(record.kept.tolist())
    order = [token for token in record.order.tolist() if token in kept] if record.order is not None else []
    colors = colormaps[ORDER](np.linspace(0, 0.92, max(1, len(order))))
    turn = {token: i for i, token in enumerate(order)}
    mask = np.zeros(sheet.pixels.shape[:2], dtype=bool)
    for cell in sheet.cells:
        for i, token in enumerate(cell.tokens):
            if token not in kept:
                continue
            left, top, wide, high = cell.place(i)
            mask[round(top) : round(top + high), round(left) : round(left + wide)] = True
            color = colors[turn[token]] if token in turn else "0.35"
            axes.add_patch(
                Rectangle((left, top), wide, high, fill=False, color=color, lw=0.7 if sheet.several else 1.1)
            )
            if turn.get(token, NUMBERED) < NUMBERED and not sheet.several:
                axes.text(
                    left + wide / 2,
                    top + high / 2,
                    str(turn[token] + 1),
                    ha="center",
                    va="center",
                    fontsize=7,
                    fontweight="bold",
                    path_effects=[withStroke(linewidth=1.6, foreground="white")],
                )
    faded = np.broadcast_to(0.25 * sheet.pixels.mean(axis=2, keepdims=True) + 0.72, sheet.pixels.shape)
    _canvas(axes, np.where(mask[..., None], sheet.pixels, faded))
    counts = [f"{len(kept.intersection(cell.tokens))} kept" for cell in sheet.cells] if sheet.several else []
    _frame(axes, sheet, title or f"kept {record.after} of {record.before}", counts)
    if order and not title:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import ListedColormap

        scale = ScalarMappable(cmap=ListedColormap(colors))
        scale.set_clim(0.5, len(order) + 0.5)
        bar: Any = axes.figure.colorbar(scale, ax=axes, shrink=0.75, pad=0.02, aspect=25)
        bar.set_ticks([1, len(order)] if len(order) > 1 else [1], labels=["first", "last"][: len(order)])
        bar.ax.tick_params(labelsize=7, length=2)
        bar.outline.set_visible(False)

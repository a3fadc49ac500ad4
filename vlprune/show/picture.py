"""One picture: the image, where it is redundant, where the question looks, and the tokens that were kept, in order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from PIL import Image
    from torch import Tensor

    from vlprune.record import Record

MAPS = {"redundancy": ("redundancy", "magma"), "relevance": ("relevance to the question", "viridis")}
ORDER = "plasma"
NUMBERED = 9  # so many of the first choices carry their number
SIDE = 2.9  # inches of a panel


class Mark(NamedTuple):
    """A circle to draw on the image, in its pixels: what a question is about."""

    x: float
    y: float
    radius: float


def picture(
    image: Image.Image,
    records: Record | Sequence[Record],
    *,
    titles: Sequence[str] | None = None,
    marks: Sequence[Sequence[Mark]] | None = None,
) -> Figure:
    """Draw one row of panels per record; all records are of the same image, given as the model saw it (`as_seen`).

    A map that a method has no scores for is left out. `titles` and `marks` are one per record; a title is by default
    the record's question.

    >>> import torch
    >>> from PIL import Image
    >>> from vlprune.record import Record
    >>> record = Record(kept=torch.tensor([0, 3]), before=4, after=2, grid=(2, 2), relevance=torch.rand(4))
    >>> len(picture(Image.new("RGB", (32, 32)), record).axes)   # image, relevance and kept, and a colour bar for one
    4
    """
    from matplotlib.figure import Figure

    rows = list(records) if isinstance(records, Sequence) else [records]
    if not rows:
        raise ValueError("records is empty: pass at least one Record.")
    for name, given in (("titles", titles), ("marks", marks)):
        if given is not None and len(given) != len(rows):
            raise ValueError(f"{name} has {len(given)} entries for {len(rows)} records: pass one per record.")
    maps = [name for name in MAPS if any(getattr(record, name) is not None for record in rows)]
    columns = 2 + len(maps)
    figure = Figure(figsize=(SIDE * columns, (SIDE + 0.55) * len(rows)), layout="constrained", facecolor="white")
    strips = figure.subfigures(len(rows), 1, squeeze=False)[:, 0]
    for i, (strip, record) in enumerate(zip(strips, rows)):
        title = titles[i] if titles is not None else record.query
        if title:
            strip.suptitle(_plain(title), x=0.01, ha="left", fontsize=11, fontweight="bold")
        panels = iter(strip.subplots(1, columns))
        _image(next(panels), image, marks[i] if marks is not None else ())
        for name in maps:
            _map(next(panels), image, record, name)
        _kept(next(panels), image, record)
    return figure


def save_picture(path: str | Path, image: Image.Image, records: Record | Sequence[Record], **options: Any) -> None:
    """Write `picture(image, records, ...)` to a file, in the format that its name ends in."""
    picture(image, records, **options).savefig(path, dpi=110)


def _plain(text: str) -> str:
    return text.replace("$", r"\$")  # matplotlib would read what is between two as a formula


def _frame(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=9, loc="left")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _image(axes: Axes, image: Image.Image, marks: Sequence[Mark]) -> None:
    from matplotlib.patches import Circle

    axes.imshow(image, interpolation="none")
    for mark in marks:
        for color, width in (("black", 2.6), ("white", 1.3)):
            axes.add_patch(Circle((mark.x, mark.y), mark.radius, fill=False, color=color, lw=width))
    _frame(axes, "image, with what is asked about" if marks else "image")


def _map(axes: Axes, image: Image.Image, record: Record, name: str) -> None:
    title, colors = MAPS[name]
    scores: Tensor | None = getattr(record, name)
    if scores is None:
        _frame(axes, f"no {name}")
        axes.set_facecolor("0.95")
        return
    box = (0, image.width, image.height, 0)
    axes.imshow(image.convert("L"), cmap="gray", extent=box, interpolation="none")
    values = _on_grid(scores, record.grid)
    shown = axes.imshow(values, cmap=colors, alpha=0.78, extent=box, interpolation="nearest")
    bar = axes.figure.colorbar(shown, ax=axes, shrink=0.75, pad=0.02, aspect=25)
    bar.ax.tick_params(labelsize=7, length=2)
    bar.outline.set_visible(False)
    if bar.solids is not None:
        bar.solids.set_alpha(1)
    _frame(axes, title)


def _kept(axes: Axes, image: Image.Image, record: Record) -> None:
    """The kept patches in full colour on a faded image, framed by when they were chosen."""
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle
    from matplotlib.patheffects import withStroke

    rows, columns = record.grid
    kept = record.kept.tolist()
    visible = np.zeros(rows * columns, dtype=bool)
    visible[kept] = True
    tall, wide = image.height / rows, image.width / columns
    down = (np.arange(image.height) / tall).astype(int).clip(0, rows - 1)
    across = (np.arange(image.width) / wide).astype(int).clip(0, columns - 1)
    mask = visible.reshape(rows, columns)[down][:, across, None]
    pixels = np.asarray(image.convert("RGB"), dtype=np.float32) / 255
    faded = 0.25 * pixels.mean(axis=2, keepdims=True) + 0.72
    axes.imshow(np.where(mask, pixels, np.broadcast_to(faded, pixels.shape)), interpolation="none")

    chosen = set(kept)
    order = [token for token in record.order.tolist() if token in chosen] if record.order is not None else []
    colors = colormaps[ORDER](np.linspace(0, 0.92, max(1, len(order))))
    place = {token: i for i, token in enumerate(order)}
    for token in kept:
        y, x = divmod(token, columns)
        color = colors[place[token]] if token in place else "0.35"
        axes.add_patch(Rectangle((x * wide - 0.5, y * tall - 0.5), wide, tall, fill=False, color=color, lw=1.1))
    for i, token in enumerate(order[:NUMBERED]):
        y, x = divmod(token, columns)
        axes.text(
            (x + 0.5) * wide - 0.5,
            (y + 0.5) * tall - 0.5,
            str(i + 1),
            ha="center",
            va="center",
            fontsize=7,
            fontweight="bold",
            path_effects=[withStroke(linewidth=1.6, foreground="white")],
        )
    _frame(axes, f"kept {record.after} of {record.before}")
    if order:
        from matplotlib.cm import ScalarMappable
        from matplotlib.colors import ListedColormap

        scale = ScalarMappable(cmap=ListedColormap(colors))
        scale.set_clim(0.5, len(order) + 0.5)
        bar = axes.figure.colorbar(scale, ax=axes, shrink=0.75, pad=0.02, aspect=25)
        bar.set_ticks([1, len(order)] if len(order) > 1 else [1], labels=["first", "last"][: len(order)])
        bar.ax.tick_params(labelsize=7, length=2)
        bar.outline.set_visible(False)


def _on_grid(scores: Tensor, grid: tuple[int, int]) -> np.ndarray:
    return scores.detach().float().cpu().numpy().reshape(grid)

"""The panels of a picture: the image, a map of scores, the kept tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor

from vlprune.record import Record
from vlprune.show.sheet import Sheet
from vlprune.show.style import LABEL_POINTS, SMALL_POINTS
from vlprune.show.titles import fit_panel_title

if TYPE_CHECKING:
    import numpy as np
    from matplotlib.axes import Axes

#: Scores that can be drawn, by their name in a record: the panel's title and its colours.
MAPS = {
    "redundancy": ("redundancy", "magma"),
    "relevance": ("relevance to the question", "viridis"),
    "ranking": ("score to rank by", "cividis"),
}
DIMMED = 0.35  # brightness of what was dropped


class Mark(NamedTuple):
    """A circle to draw on the image, in its pixels: what a question is about."""

    x: float
    y: float
    radius: float


def draw_image(axes: Axes, sheet: Sheet, marks: Sequence[Mark], title: str | None = None) -> None:
    """The image, or its tiles or frames, with circles around what is asked about."""
    _show_pixels(axes, sheet.pixels)
    _draw_marks(axes, sheet, marks)
    title = title or (f"{sheet.title}, with what is asked about" if marks else sheet.title)
    _finish_panel(axes, sheet, title, [cell.label for cell in sheet.cells])


def draw_scores(
    axes: Axes,
    sheet: Sheet,
    scores: Tensor | None,
    name: str,
    marks: Sequence[Mark] = (),
    title: str | None = None,
) -> None:
    """A map of the scores of that name over the image in grey, bright where they are high."""
    from matplotlib.patches import Rectangle

    usual, colors = MAPS[name]
    if scores is None:
        _finish_panel(axes, sheet, f"no {name}")
        axes.set_facecolor("0.95")
        return
    _show_pixels(axes, sheet.pixels.mean(axis=2), cmap="gray", vmin=0, vmax=1)
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
    bar = _add_color_bar(axes, shown)
    if bar.solids is not None:
        bar.solids.set_alpha(1)
    _draw_marks(axes, sheet, marks)
    _finish_panel(axes, sheet, title or usual)


def draw_kept(axes: Axes, sheet: Sheet, record: Record, marks: Sequence[Mark] = (), title: str | None = None) -> None:
    """The image in the dark, and as it is where a token was kept."""
    import numpy as np

    kept = set(record.kept.tolist())
    mask = np.zeros(sheet.pixels.shape[:2], dtype=bool)
    for cell in sheet.cells:
        for i, token in enumerate(cell.tokens):
            if token in kept:
                left, top, wide, high = cell.token_box(i)
                mask[round(top) : round(top + high), round(left) : round(left + wide)] = True
    _show_pixels(axes, np.where(mask[..., None], sheet.pixels, DIMMED * sheet.pixels))
    _draw_marks(axes, sheet, marks)
    counts = [f"{len(kept.intersection(cell.tokens))} kept" for cell in sheet.cells] if sheet.several else []
    _finish_panel(axes, sheet, title or f"kept {record.after} of {record.before}", counts)


def _draw_marks(axes: Axes, sheet: Sheet, marks: Sequence[Mark]) -> None:
    """Circles, white in black, which are seen on any ground."""
    from matplotlib.patches import Circle

    for mark in marks:
        x, y, radius = (sheet.scale * value for value in mark)
        for color, width in (("black", 2.6), ("white", 1.3)):
            axes.add_patch(Circle((x, y), radius, fill=False, color=color, lw=width))


def _add_color_bar(axes: Axes, shown: Any) -> Any:
    """A bar of the colours, as high as the panel's image."""
    bar: Any = axes.figure.colorbar(shown, cax=axes.inset_axes((1.03, 0.0, 0.045, 1.0)))
    bar.ax.tick_params(labelsize=SMALL_POINTS, length=2)
    bar.outline.set_visible(False)
    return bar


def _show_pixels(axes: Axes, pixels: np.ndarray, **options: Any) -> None:
    high, wide = pixels.shape[:2]
    axes.imshow(pixels, extent=(0, wide, high, 0), interpolation="none", **options)


def _finish_panel(axes: Axes, sheet: Sheet, title: str, labels: Sequence[str] = ()) -> None:
    """Set the panel's limits and title, take its axes away, and write a label into each cell."""
    from matplotlib.patheffects import withStroke

    high, wide, _ = sheet.pixels.shape
    axes.set_xlim(0, wide)
    axes.set_ylim(high, 0)
    place, figure = axes.get_subplotspec(), axes.figure
    assert place is not None
    columns = place.get_geometry()[1]
    inches = figure.bbox.width / figure.dpi / columns
    axes.set_title(fit_panel_title(title, inches, LABEL_POINTS), fontsize=LABEL_POINTS, loc="left")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    outline = [withStroke(linewidth=2, foreground="white")]
    for cell, label in zip(sheet.cells, labels):
        axes.text(cell.box.left + 4, cell.box.top + 4, label, va="top", fontsize=SMALL_POINTS, path_effects=outline)

"""Pictures of one image or video: where it is redundant, where the question looks, and the tokens that were kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vlprune.media.outputs import picture_metadata, replace_when_done
from vlprune.record import Record
from vlprune.show.panels import MAPS, Mark, draw_image, draw_kept, draw_scores
from vlprune.show.sheet import Sheet, lay_out
from vlprune.show.style import DPI, TITLE_POINTS, WIDTH
from vlprune.show.titles import fallback_fonts, fit_title

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from PIL import Image

PANELS_IN_A_ROW = 4  # so that a picture is as wide as a plot
BAR_INCHES = 0.5  # width of a map's colour bar
TITLE: Any = {"ha": "left", "fontsize": TITLE_POINTS, "fontweight": "bold"}


def draw_picture(
    image: Image.Image | Sequence[Image.Image],
    records: Record | Sequence[Record],
    *,
    titles: Sequence[str] | None = None,
    marks: Sequence[Sequence[Mark]] | None = None,
    panel_titles: Sequence[Mapping[str, str]] | None = None,
) -> Figure:
    """Draw a strip of panels for each record: the image, maps of its scores, and the kept tokens.

    All records are of the same image, given as the model saw it (see `vlprune.media.image.image_from_pixels`). Of a
    video, or of an image in tiles, `image` may be one for each of the record's parts: they make a contact sheet, of 16
    frames at most. A map that a method has no scores for is left out. `titles`, `marks` and `panel_titles` are one per
    record; a title is by default the record's question, and a panel's title is given by the name of its scores, or as
    "kept".

    >>> import torch
    >>> from PIL import Image
    >>> from vlprune.record import Record
    >>> record = Record(kept=torch.tensor([0, 3]), before=4, after=2, grid=(2, 2), relevance=torch.rand(4))
    >>> len(draw_picture(Image.new("RGB", (32, 32)), record).axes)   # image, relevance and kept
    3
    """
    from matplotlib.figure import Figure

    strips = list(records) if isinstance(records, Sequence) else [records]
    if not strips:
        raise ValueError("records is empty: pass at least one Record.")
    for name, given in (("titles", titles), ("marks", marks), ("panel_titles", panel_titles)):
        if given is not None and len(given) != len(strips):
            raise ValueError(f"{name} has {len(given)} entries for {len(strips)} records: pass one per record.")
    maps = [name for name in MAPS if any(getattr(record, name) is not None for record in strips)]
    sheets = [lay_out(image, record) for record in strips]
    # one image has its panels in a row; small tiles and frames need larger panels, two in a row
    several = any(sheet.several for sheet in sheets)
    columns, side = (2, WIDTH / 2) if several else (2 + len(maps), WIDTH / PANELS_IN_A_ROW)
    rows = -(-(2 + len(maps)) // columns)
    height = _panel_height(sheets[0], side - BAR_INCHES * len(maps) / columns)
    size = (side * columns, (height * rows + 0.75) * len(strips))
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    drawn = figure.subfigures(len(strips), 1, squeeze=False)[:, 0]
    for i, (strip, record, sheet) in enumerate(zip(drawn, strips, sheets)):
        title = titles[i] if titles is not None else record.query
        if title:
            strip.suptitle(fit_title(title, size[0], TITLE_POINTS), x=0.01, **TITLE)
        panels = iter(strip.subplots(rows, columns).flat)
        asked, own = marks[i] if marks is not None else (), panel_titles[i] if panel_titles is not None else {}
        draw_image(next(panels), sheet, asked)
        for name in maps:
            draw_scores(next(panels), sheet, getattr(record, name), name, asked, own.get(name))
        draw_kept(next(panels), sheet, record, asked, own.get("kept"))
        for spare in panels:
            spare.set_axis_off()
    return figure


def draw_contact_sheet(
    image: Image.Image | Sequence[Image.Image],
    records: Mapping[str, Record],
    *,
    title: str = "",
    titles: Mapping[str, str] | None = None,
) -> Figure:
    """Draw what each of several methods keeps of one image, side by side, and below the scores that they went by.

    `records` are by the method's name, `image` is as in `draw_picture`; `titles` are panels' titles by the same names,
    and "" is that of the image itself. Scores that several methods share are drawn once.

    >>> import torch
    >>> from PIL import Image
    >>> from vlprune.record import Record
    >>> one = Record(kept=torch.tensor([0, 3]), before=4, after=2, grid=(2, 2), relevance=torch.rand(4))
    >>> drawn = draw_contact_sheet(Image.new("RGB", (32, 32)), {"script": one, "cdpruner": one})
    >>> [axes.get_title(loc="left") for axes in drawn.axes][:4]
    ['image', 'script', 'cdpruner', 'relevance to the question:\\nscript, cdpruner']
    """
    from matplotlib.figure import Figure

    if not records:
        raise ValueError("records is empty: pass at least one Record.")
    titles, maps = titles or {}, _distinct_scores(records)
    sheets = {name: lay_out(image, record) for name, record in records.items()}
    sheet = next(iter(sheets.values()))
    abreast = 2 if sheet.several else PANELS_IN_A_ROW
    columns, side = min(abreast, 1 + len(records)), WIDTH / abreast
    rows = [-(-count // columns) for count in (1 + len(records), len(maps)) if count]
    height = (_panel_height(sheet, side) + 0.4) * sum(rows)
    figure = Figure(figsize=(side * columns, height + 0.4), layout="constrained", facecolor="white")
    blocks = figure.subfigures(len(rows), 1, squeeze=False, height_ratios=rows)[:, 0]
    panels = [iter(block.subplots(count, columns, squeeze=False).flat) for block, count in zip(blocks, rows)]
    if title:
        figure.suptitle(fit_title(title, side * columns, TITLE_POINTS), x=0.01, **TITLE)
    draw_image(next(panels[0]), sheet, (), titles.get(""))
    for name, record in records.items():
        draw_kept(next(panels[0]), sheets[name], record, title=titles.get(name, name))
    for kind, scores, names in maps:
        draw_scores(next(panels[1]), sheet, scores, kind, title=f"{MAPS[kind][0]}:\n{', '.join(names)}")
    for block in panels:
        for spare in block:
            spare.set_axis_off()
    return figure


def _distinct_scores(records: Mapping[str, Record]) -> list[tuple[str, Tensor, list[str]]]:
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


def _panel_height(sheet: Sheet, side: float) -> float:
    """Inches in height of a panel that is `side` wide."""
    high, wide, _ = sheet.pixels.shape
    return side * min(2.0, max(0.4, high / wide))


def save_picture(
    path: str | Path,
    image: Image.Image | Sequence[Image.Image],
    records: Record | Sequence[Record],
    **options: Any,
) -> None:
    """Write `draw_picture(image, records, ...)` to a file, in the format that its name ends in."""
    with fallback_fonts(), replace_when_done(path) as half:
        draw_picture(image, records, **options).savefig(half, dpi=DPI, **picture_metadata(path))


def save_contact_sheet(
    path: str | Path, image: Image.Image | Sequence[Image.Image], records: Mapping[str, Record], **options: Any
) -> None:
    """Write `draw_contact_sheet(image, records, ...)` to a file, in the format that its name ends in."""
    with fallback_fonts(), replace_when_done(path) as half:
        draw_contact_sheet(image, records, **options).savefig(half, dpi=DPI, **picture_metadata(path))

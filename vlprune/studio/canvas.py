"""The picture of the page: an SVG with a rectangle for each token, over the image, its tiles or its frames."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from typing import Any

import numpy as np

from vlprune.record import Record
from vlprune.show.panels import MAPS
from vlprune.show.sheet import Sheet, lay_out

#: What a picture can show, in the words of the page.
OVERLAYS = ("kept", "order of choice", "relevance", "redundancy", "ranking")
EMPTY = '<div class="vlp-empty">Upload an image, or take an example: what is kept of it shows here.</div>'


def available_overlays(record: Record) -> list[str]:
    """What can be shown of a record: a map only where the method gave its scores.

    >>> import torch
    >>> available_overlays(Record(torch.tensor([0]), 4, 1, (2, 2), relevance=torch.rand(4)))
    ['kept', 'relevance']
    """
    has = {"kept": True, "order of choice": record.order is not None, **dict.fromkeys(record.scores, True)}
    return [name for name in OVERLAYS if has.get(name)]


def draw_canvas(
    background: Any, record: Record, overlay: str = "kept", step: int | None = None, picked: Sequence[int] = ()
) -> str:
    """The picture as HTML. `step` shows only the first so many choices; `picked` tokens have a frame.

    Every token carries a line of its numbers, which the page shows under the pointer and under the keyboard's cursor.

    >>> import torch
    >>> from PIL import Image
    >>> record = Record(kept=torch.tensor([0, 3]), before=4, after=2, grid=(2, 2), order=torch.tensor([3, 0]))
    >>> html = draw_canvas(Image.new("RGB", (8, 8)), record, step=1)
    >>> html.count("<rect"), html.count('class="kept"'), "token 3" in html
    (4, 1, True)
    """
    sheet = lay_out(background, record)
    height, width = sheet.pixels.shape[:2]
    chosen = _choices_so_far(record, step)
    lines = describe_tokens(record)
    colours, legend = _colours(record, overlay, chosen)
    rects = []
    for cell in sheet.cells:
        columns = cell.grid[1]
        for i, token in enumerate(cell.tokens):
            x, y, wide, high = cell.token_box(i)
            kind = "kept" if token in chosen["kept"] else "lost" if token in chosen["lost"] else "gone"
            fill = f' style="fill:{colours[token]}"' if token in colours else ""
            rects.append(
                f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{wide:g}" height="{high:g}"{fill} '
                f'data-token="{token}" data-row="{i // columns}" data-column="{i % columns}" '
                f'data-says="{escape(lines[token])}"/>'
            )
    marks = "".join(_mark(sheet, token, number) for number, token in enumerate(picked, start=1))
    labels = "".join(
        f'<text x="{cell.box.left + 6:g}" y="{cell.box.top + 0.03 * width:g}">{escape(cell.label)}</text>'
        for cell in sheet.cells
    )
    said = f"{len(chosen['kept'])} of {record.before} visual tokens kept, shown on {sheet.title}"
    shows = "map" if colours else "plain"
    return (
        f'<figure class="vlp-canvas {shows}"><svg viewBox="0 0 {width} {height}" role="img" tabindex="0" '
        f'style="--unit:{width / 100:g}px" '
        f'aria-label="{escape(said)}. Arrow keys move from token to token, Enter picks one.">'
        f'<image width="{width}" height="{height}" href="{_data_url(sheet)}"/>{"".join(rects)}{labels}{marks}</svg>'
        f'{legend}<figcaption aria-live="polite">{escape(said)}. Point at a token for its numbers; pick two to compare '
        "them.</figcaption></figure>"
    )


def _choices_so_far(record: Record, step: int | None) -> dict[str, set[int]]:
    """The kept tokens among the first `step` choices, and those that were chosen and then lost to the graph."""
    kept = set(record.kept.tolist())
    if step is None or record.order is None:
        return {"kept": kept, "lost": set()}
    chosen = set(record.choices[:step])
    return {"kept": chosen & kept, "lost": chosen - kept}


def describe_tokens(record: Record) -> list[str]:
    """A line for each token: where it lies, whether it is kept, and its scores.

    >>> import torch
    >>> record = Record(torch.tensor([1]), 2, 1, (1, 2), order=torch.tensor([1]), relevance=torch.tensor([0.25, 1.0]))
    >>> describe_tokens(record)
    ['token 0 · row 1, column 1 · dropped · relevance 0.25', 'token 1 · row 1, column 2 · kept, choice 1 · relevance 1']
    """
    kept = set(record.kept.tolist())
    ranks = {token: i for i, token in enumerate(record.choices, start=1)}
    scores = {name: values.tolist() for name, values in record.scores.items()}
    places = {}
    for number, part in enumerate(record.parts):
        named = "" if len(record.parts) == 1 else f"{part.name} {number + 1}, "
        for i, token in enumerate(part.tokens.tolist()):
            places[token] = f"{named}row {i // part.grid[1] + 1}, column {i % part.grid[1] + 1}"
    lines = []
    for token in range(record.before):
        columns = record.grid[1]
        place = places.get(token, f"row {token // columns + 1}, column {token % columns + 1}")
        state = ("kept" if token in kept else "dropped") + (f", choice {ranks[token]}" if token in ranks else "")
        numbers = [f"{name} {values[token]:.4g}" for name, values in scores.items()]
        lines.append(" · ".join([f"token {token}", place, state, *numbers]))
    return lines


def _colours(record: Record, overlay: str, chosen: dict[str, set[int]]) -> tuple[dict[int, str], str]:
    """The colour of each token on a map, by its number, and the map's legend; both empty where there is no map."""
    if overlay == "order of choice" and record.order is not None:
        order = [token for token in record.choices if token in chosen["kept"]]
        last = max(1, len(order) - 1)
        values = {token: 1 - i / last for i, token in enumerate(order)}
        return _shade(values, "viridis"), _legend("viridis", "order of choice", "last", "first")
    if overlay in MAPS and overlay in record.scores:
        title, colours = MAPS[overlay]
        scores = record.scores[overlay].tolist()
        low, high = min(scores), max(scores)
        span = (high - low) or 1.0
        values = {token: (score - low) / span for token, score in enumerate(scores)}
        return _shade(values, colours), _legend(colours, title, f"{low:.3g}", f"{high:.3g}")
    return {}, ""


def _shade(values: dict[int, float], colours: str) -> dict[int, str]:
    """Values from 0 to 1 as colours of a map that colour-blind readers can tell apart."""
    from matplotlib import colormaps
    from matplotlib.colors import to_hex

    return {token: to_hex(colormaps[colours](value)) for token, value in values.items()}


def _legend(colours: str, title: str, low: str, high: str) -> str:
    stops = ", ".join(_shade({i: i / 8 for i in range(9)}, colours).values())
    return (
        f'<div class="vlp-legend"><span>{escape(title)}</span><span>{escape(low)}</span>'
        f'<i style="background:linear-gradient(to right, {stops})"></i><span>{escape(high)}</span></div>'
    )


def _mark(sheet: Sheet, token: int, number: int) -> str:
    """A frame around a picked token."""
    for cell in sheet.cells:
        if token in cell.tokens:
            x, y, wide, high = cell.token_box(cell.tokens.index(token))
            return (
                f'<g class="picked"><path d="M{x:g} {y:g}h{wide:g}v{high:g}h-{wide:g}z"/>'
                f'<text x="{x + wide / 2:g}" y="{y - 3:g}">{number}</text></g>'
            )
    return ""


def _data_url(sheet: Sheet) -> str:
    """The pixels of a sheet as a JPEG in a URL."""
    from PIL import Image

    held = io.BytesIO()
    Image.fromarray((sheet.pixels * 255).round().astype(np.uint8)).save(held, "JPEG", quality=90)
    return "data:image/jpeg;base64," + base64.b64encode(held.getvalue()).decode("ascii")

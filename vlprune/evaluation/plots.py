"""The figures that studies share: curves against a budget, rows with intervals, panels of maps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

from vlprune.show.style import (
    COLORS,
    FAINT,
    LABEL_POINTS,
    MARKERS,
    SMALL_POINTS,
    WIDTH,
    add_legend,
    dress,
    ink,
    line_looks,
    new_figure,
)
from vlprune.show.titles import fit_panel_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A point of a curve: x, y, and the ends of y's interval.
Point = tuple[float, float, float, float]
#: A value and the ends of its interval.
Interval = tuple[float, float, float]
MAX_CURVES = 6  # of a figure; with the line of all tokens seven
TICKS = (100, 90, 80, 50, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)  # errors, in percent
ERRORS_ON_A_LOG_SCALE = "errors on a log scale: equal steps cut them by the same factor"
ABOVE_LEAST = 0.3  # how far above the smallest error 100 % is drawn; what cuts errors to a tenth is 1 away
LINE_OF_TEXT = 0.047  # height of an end label, as a share of the axes'


def plot_curves(
    curves: Mapping[str, Sequence[Point]], *, flat: Mapping[str, float], x: str, y: str, title: str, note: str = ""
) -> Figure:
    """Draw percentages: a curve with intervals for each name, written at its end; `flat` are dashed lines across.

    x is on a logarithmic scale, and so is what y is missing to 100 %: see `use_error_scale`.
    """
    import numpy as np

    figure = new_figure(4.6, title)
    axes = figure.subplots()
    points = [point for one in curves.values() for point in one]
    ends = {name: (max(point[0] for point in points), value, "#767676") for name, value in flat.items()}
    for value in flat.values():
        axes.axhline(value, color="#767676", linestyle="--", linewidth=1.2)
    for name, look in line_looks(list(curves)).items():
        at, mean, low, high = np.array(sorted(curves[name])).T
        spread = np.maximum([mean - low, high - mean], 0)
        axes.errorbar(at, mean, spread, markersize=4.5, linewidth=1.5, capsize=2, elinewidth=0.8, label=name, **look)
        ends[name] = (at[-1], mean[-1], look["color"])
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    places = _common_places(curves)
    axes.set_xticks(places, [f"{place:g}" for place in places])
    use_error_scale(axes, "y", [*flat.values(), *(point[1] for point in points)], [point[2] for point in points])
    dress(axes, x=x, y=f"{y}\n{ERRORS_ON_A_LOG_SCALE}", title=note)
    _label_ends(axes, ends)
    return figure


def choose_curves(curves: Mapping[str, Sequence[Point]], always: Sequence[str]) -> list[str]:
    """The names of the curves to draw, `MAX_CURVES` at most: those of `always`, and the best of the others.

    The best are those that are highest at their smallest x.

    >>> low, high = [(64, 50.0, 40.0, 60.0), (16, 20.0, 10.0, 30.0)], [(16, 30.0, 20.0, 40.0)]
    >>> curves = {"random": low, **{f"low {i}": low for i in range(6)}, "high": high}
    >>> choose_curves(curves, ["random"])
    ['random', 'low 0', 'low 1', 'low 2', 'low 3', 'high']
    """
    first = {name: min(points)[1] for name, points in curves.items()}
    fixed = [name for name in always if name in curves]
    others = sorted(set(curves) - set(fixed), key=lambda name: (-first[name], name))
    drawn = {*fixed, *others[: MAX_CURVES - len(fixed)]}
    return [name for name in curves if name in drawn]


def use_error_scale(axes: Axes, axis: str, shares: Sequence[float], lowest: Iterable[float]) -> None:
    """Put percentages on a scale on which errors, what is missing to 100 %, are logarithmic.

    There 99 and 99.9 % are as far apart as 90 and 99 %. Above half the smallest error of the `shares` the scale is
    linear, so that 100 % has its place. It reaches down to the `lowest` that is drawn.
    """
    import numpy as np

    least = _smallest_error(shares) / 2

    def place(share: Any) -> Any:
        error = 100 - np.asarray(share, dtype=float)
        return np.where(error > least, -np.log10(np.maximum(error, least) / least), ABOVE_LEAST * (1 - error / least))

    def share(place: Any) -> Any:
        place = np.asarray(place, dtype=float)
        return 100 - least * np.where(place < 0, 10 ** -np.minimum(place, 0), 1 - place / ABOVE_LEAST)

    getattr(axes, f"set_{axis}scale")("function", functions=(place, share))
    ticks = [100 - error for error in TICKS if error > 1.4 * least]
    getattr(axes, f"set_{axis}ticks")([*ticks, 100], [f"{tick:g}" for tick in (*ticks, 100)])
    bottom, top = place(max(0.0, min([*shares, *lowest]))), place(100)
    room = 0.04 * (top - bottom)
    getattr(axes, f"set_{axis}lim")(max(0.0, float(share(bottom - room))), float(share(top + room)))


def _smallest_error(shares: Sequence[float]) -> float:
    """The least that any share, in percent, is missing to 100, not counting those that miss nothing.

    >>> _smallest_error([100.0, 98.0, 75.0]), _smallest_error([100.0])
    (2.0, 1.0)
    """
    return min((100 - share for share in shares if share < 100), default=1.0)


def _label_ends(axes: Axes, ends: Mapping[str, tuple[float, float, str]]) -> None:
    """Write each name right of the axes, as near to its line's end (x, y, colour) as the other names allow."""
    shares = {}
    for name, (x, y, _) in ends.items():
        shares[name] = float(axes.transAxes.inverted().transform(axes.transData.transform((x, y)))[1])
    for name, height in spread_heights(shares, LINE_OF_TEXT).items():
        x, y, color = ends[name]
        axes.annotate(
            name,
            (x, y),
            (1.03, height),
            xycoords="data",
            textcoords="axes fraction",
            color=ink(color),
            fontsize=LABEL_POINTS,
            va="center",
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.8, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3},
        )


def spread_heights(wanted: Mapping[str, float], gap: float) -> dict[str, float]:
    """Heights from 0 to 1 at least `gap` apart, in the order of the wanted ones and near to them.

    >>> {name: round(height, 2) for name, height in spread_heights({"a": 0.5, "b": 0.5, "c": 1.2}, 0.1).items()}
    {'c': 1.0, 'a': 0.5, 'b': 0.4}
    """
    heights: dict[str, float] = {}
    above = 1.0 + gap
    for name in sorted(wanted, key=lambda name: -wanted[name]):
        above = heights[name] = min(wanted[name], above - gap)
    below = -gap  # what was pushed out at the bottom goes up again
    for name in reversed(heights):
        below = heights[name] = max(heights[name], below + gap)
    return heights


def _common_places(curves: Mapping[str, Sequence[Point]]) -> list[int]:
    """The x that most curves have a point at, for the ticks."""
    everywhere = [round(point[0]) for points in curves.values() for point in points]
    most = max(map(everywhere.count, everywhere))
    return sorted({place for place in everywhere if everywhere.count(place) > most / 2})


def plot_rows(
    rows: Mapping[str, Mapping[str, Interval]],
    *,
    x: str,
    title: str,
    note: str = "",
    across: Mapping[str, float] | None = None,
    percentages: bool = True,
) -> Figure:
    """Draw a row for each name, from the top down: a value with its interval for each group, such as a budget.

    `across` are vertical dashed lines, in a group's colour if named as one. Percentages are on the scale of
    `use_error_scale`, which is said below them.

    >>> figure = plot_rows({"a": {"keep 64": (99.0, 98.0, 99.5)}}, x="right answers, %", title="How good?")
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['a']
    """
    import numpy as np

    across = across or {}
    groups = list(dict.fromkeys(group for row in rows.values() for group in row))
    pitch = 0.24 + 0.06 * (len(groups) - 1)  # inches from row to row
    figure = new_figure(1.6 + 0.2 * bool(note) + pitch * len(rows), title)
    axes = figure.subplots()
    handles: dict[str, Any] = {}
    for i, (group, color, marker) in enumerate(zip(groups, cycle(COLORS), cycle(MARKERS))):
        places = [place for place, row in enumerate(rows.values()) if group in row]
        middle, low, high = np.array([row[group] for row in rows.values() if group in row]).T
        spread = np.maximum([middle - low, high - middle], 0)
        heights = [place + 0.5 * ((i + 0.5) / len(groups) - 0.5) for place in places]
        look: dict[str, Any] = {"fmt": marker, "color": color, "markersize": 4.5, "capsize": 2, "elinewidth": 1.2}
        handles[group] = axes.errorbar(middle, heights, xerr=spread, **look)
    for name, value in across.items():
        color = handles[name].lines[0].get_color() if name in groups else "#767676"
        handles.setdefault(name, axes.axvline(value, color=color, linewidth=1, linestyle="--", zorder=0.5))
    if percentages:
        values = np.array([one for row in rows.values() for one in row.values()])
        use_error_scale(axes, "x", [*across.values(), *values[:, 0]], values[:, 1])
        x = f"{x}\n{ERRORS_ON_A_LOG_SCALE}"
    axes.set_yticks(range(len(rows)), list(rows))
    axes.set_ylim(len(rows) - 0.5, -0.5)
    dress(axes, x=x, title=note)
    add_legend(figure, list(handles.values()), list(handles))
    return figure


def plot_panels(rows: Sequence[Sequence[tuple[str, Any]]], *, title: str, low: str, high: str) -> Figure:
    """Draw rows of pictures (height, width, 3) and maps (height, width), each with a title.

    A title that all panels of a column share stands above the first. Maps are bright where they are high; masks, of
    true and false, have one colour for true. A legend says what that means, in the words given.
    """
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    columns = max(map(len, rows))
    side = WIDTH / columns
    figure = new_figure((side + 0.35) * len(rows) + 0.7, title)
    bright, mask = colormaps["viridis"], ListedColormap([FAINT, COLORS[1]])
    has_masks = any(np.asarray(values).dtype == bool for row in rows for _, values in row)
    said = mask if has_masks else bright
    patches = [Patch(color=said(1.0)), Patch(color=said(0.0))]
    add_legend(figure, patches, [high, low])
    titles = [{row[i][0] for row in rows if i < len(row)} for i in range(columns)]
    for number, (row, line) in enumerate(zip(rows, figure.subplots(len(rows), columns, squeeze=False))):
        for axes in line:
            axes.axis("off")
        for i, ((name, values), axes) in enumerate(zip(row, line)):
            values = np.asarray(values)
            style: dict[str, Any] = {"cmap": bright} if values.ndim == 2 else {}
            if values.dtype == bool:
                style = {"cmap": mask, "vmin": 0, "vmax": 1}
            axes.imshow(values, interpolation="nearest", **style)
            if number == 0 or len(titles[i]) > 1:
                axes.set_title(fit_panel_title(name, side, SMALL_POINTS), fontsize=SMALL_POINTS, loc="left")
    return figure

"""The figures that studies share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vlprune.show.panels import escape_formulas

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: A point of a curve: x, y, and the ends of y's interval.
Point = tuple[float, float, float, float]
#: Colours that colour-blind readers can tell apart (Okabe and Ito, 2008), without the yellow, which is faint on white.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
TICKS = (90, 80, 50, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
ERRORS_ON_A_LOG_SCALE = "errors on a log scale:\nequal steps up cut them by the same factor"
LINE_OF_TEXT = 0.042  # height of an end label, as a share of the axes'


def plot_curves(
    curves: Mapping[str, Sequence[Point]], *, flat: Mapping[str, float], x: str, y: str, title: str = ""
) -> Figure:
    """Draw percentages: a curve with intervals for each name, written at its end; `flat` are dashed lines across.

    What is missing to 100 % is drawn on a logarithmic scale: there 99 and 99.9 % are as far apart as 90 and 99 %. 100 %
    itself is drawn where half the smallest error would be, with what comes nearer to it.
    """
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 5), layout="constrained")
    axes = figure.subplots()
    least = _smallest_error([*flat.values(), *(point[1] for points in curves.values() for point in points)]) / 2

    def missing(value: Any) -> Any:
        return np.maximum(100 - np.asarray(value), least)

    ends = {}
    for name, value in flat.items():
        axes.axhline(missing(value), color="grey", linestyle="--")
        ends[name] = (max(point[0] for points in curves.values() for point in points), missing(value), "grey")
    for i, (name, points) in enumerate(curves.items()):
        at, mean, low, high = np.array(sorted(points)).T
        mean, low, high = missing(mean), missing(low), missing(high)
        color = "black" if name == "oracle" else COLORS[i % len(COLORS)]
        # of what is missing, of which a high share of right answers leaves little
        spread = np.array([mean - high, low - mean])
        style: Any = {"linestyle": ":" if name == "oracle" else "-", "marker": "osD^v"[i % 5]}
        axes.errorbar(at, mean, spread, color=color, markersize=4, capsize=2, elinewidth=0.8, label=name, **style)
        ends[name] = (at[-1], mean[-1], color)
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    places = _common_places(curves)
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_yscale("log")
    limits = axes.get_ylim()
    ticks = [tick for tick in TICKS if tick > 1.4 * least]
    axes.set_yticks([*ticks, least], [*(f"{100 - tick:g}" for tick in ticks), "100"])
    axes.set_yticks([], minor=True)
    axes.set_ylim(min(limits[1], 100), least * 0.8)  # much missing at the bottom
    axes.set(xlabel=x, ylabel=f"{y}; {ERRORS_ON_A_LOG_SCALE}")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.25)
    _label_ends(axes, ends)
    return figure


def _smallest_error(shares: Sequence[float]) -> float:
    """The least that any share, in percent, is missing to 100, not counting those that miss nothing.

    >>> _smallest_error([100.0, 98.0, 75.0]), _smallest_error([100.0])
    (2.0, 1.0)
    """
    return min((100 - share for share in shares if share < 100), default=1.0)


def _label_ends(axes: Axes, ends: Mapping[str, tuple[float, float, Any]]) -> None:
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
            color=color,
            fontsize=9,
            va="center",
            arrowprops={"arrowstyle": "-", "color": color, "lw": 0.6, "relpos": (0, 0.5), "shrinkA": 1, "shrinkB": 3},
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


def plot_panels(
    rows: Sequence[Sequence[tuple[str, Any]]], *, title: str, low: str, high: str, size: float = 1.9
) -> Figure:
    """Draw rows of pictures (height, width, 3) and maps (height, width), each with a title.

    In maps blue is low, or false, and red high, or true; a legend says what that means, in the words given.
    """
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    columns = max(map(len, rows))
    figure = Figure(figsize=(size * columns, (size + 0.3) * len(rows) + 0.8), layout="constrained")
    figure.suptitle(title, fontsize=11, fontweight="bold")
    colors = colormaps["coolwarm"]
    patches = [Patch(color=colors(1.0), label=high), Patch(color=colors(0.0), label=low)]
    figure.legend(handles=patches, loc="outside lower center", ncols=2, fontsize=9, frameon=False)
    grid = figure.subplots(len(rows), columns, squeeze=False)
    for row, line in zip(rows, grid):
        for axes in line:
            axes.axis("off")
        for (name, values), axes in zip(row, line):
            values = np.asarray(values)
            style = {} if values.ndim == 3 else {"cmap": colors}
            axes.imshow(values, **style, **({"vmin": 0, "vmax": 1} if values.dtype == bool else {}))
            axes.set_title(escape_formulas(name), fontsize=7, wrap=True)
    return figure

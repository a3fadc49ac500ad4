"""The figures that studies share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: A point of a curve: x, y, and the ends of y's interval.
Point = tuple[float, float, float, float]
LEAST_MISSING = 0.02  # percent missing to 100; less is drawn as this
TICKS = (90, 80, 50, 20, 10, 5, 2, 1, 0.5, 0.2, 0.1, 0.05, 0.02)


def plot_curves(curves: Mapping[str, Sequence[Point]], *, flat: Mapping[str, float], x: str, y: str) -> Figure:
    """Draw percentages: a curve with intervals for each name; `flat` are dashed lines across.

    What is missing to 100 % is drawn on a logarithmic scale: there 99 and 99.9 % are as far apart as 90 and 99 %.
    """
    import numpy as np
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 5), layout="constrained")
    axes = figure.subplots()

    def missing(value: Any) -> Any:
        return np.maximum(100 - np.asarray(value), LEAST_MISSING)

    for name, value in flat.items():
        axes.axhline(missing(value), color="grey", linestyle="--", label=name)
    colors = colormaps["tab20"](range(20))
    for i, (name, points) in enumerate(curves.items()):
        at, mean, low, high = np.array(sorted(points)).T
        mean, low, high = missing(mean), missing(low), missing(high)
        style = {"color": "black", "linestyle": ":"} if name == "oracle" else {"color": colors[i % 20]}
        # of what is missing, of which a high share of right answers leaves little
        spread = np.array([mean - high, low - mean])
        marker = "osD^v"[i % 5]
        axes.errorbar(at, mean, spread, marker=marker, markersize=4, capsize=2, label=name, **style)
    axes.set_xscale("log", base=2)
    axes.minorticks_off()
    places = _common_places(curves)
    axes.set_xticks(places, [f"{place:g}" for place in places])
    axes.set_yscale("log")
    limits = axes.get_ylim()
    axes.set_yticks(TICKS, [f"{100 - tick:g}" for tick in TICKS])
    axes.set_yticks([], minor=True)
    axes.set_ylim(min(limits[1], 100), max(limits[0], LEAST_MISSING * 0.8))  # much missing at the bottom
    axes.set(xlabel=x, ylabel=y)
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure


def _common_places(curves: Mapping[str, Sequence[Point]]) -> list[int]:
    """The x that most curves have a point at, for the ticks."""
    everywhere = [round(point[0]) for points in curves.values() for point in points]
    most = max(map(everywhere.count, everywhere))
    return sorted({place for place in everywhere if everywhere.count(place) > most / 2})


def plot_panels(rows: Sequence[Sequence[tuple[str, Any]]], size: float = 1.9) -> Figure:
    """Draw rows of pictures (height, width, 3) and maps (height, width), each with a title; red is high, or true."""
    import numpy as np
    from matplotlib.figure import Figure

    figure = Figure(figsize=(size * max(map(len, rows)), (size + 0.3) * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), max(map(len, rows)), squeeze=False)
    for row, line in zip(rows, grid):
        for axes in line:
            axes.axis("off")
        for (title, values), axes in zip(row, line):
            values = np.asarray(values)
            style = {} if values.ndim == 3 else {"cmap": "coolwarm"}
            axes.imshow(values, **style, **({"vmin": 0, "vmax": 1} if values.dtype == bool else {}))
            axes.set_title(title, fontsize=7, wrap=True)
    return figure

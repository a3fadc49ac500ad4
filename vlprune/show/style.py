"""How plots look, wherever they are drawn: one width, one set of colours, one way of titles and axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vlprune.show.titles import fit_title

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH = 7.6  # inches; docs show a plot 760 pixels wide, so that a point of its text is 1.4 pixels there
DPI = 160
TITLE_POINTS, LABEL_POINTS, SMALL_POINTS = 11, 9, 8
#: Colours that colour-blind readers can tell apart (Okabe and Ito, 2008), without the yellow, which is faint on white.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00")
MARKERS = "osD^vP"
FAINT = "#d9d9d9"  # what is not meant, beside one of the colours
#: Methods that look the same in every plot: colour, and the style of the line.
FIXED_LOOKS = {
    "script": (COLORS[0], "-"),
    "script_plus": (COLORS[1], "-"),
    "random": ("#767676", "-."),
    "oracle": ("#000000", ":"),
}


def new_figure(height: float, title: str) -> Figure:
    """An empty figure, `WIDTH` by `height` inches, with a bold title at its upper left.

    >>> new_figure(3, "How many?").get_suptitle()
    'How many?'
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, height), layout="constrained", facecolor="white")
    text = fit_title(title, WIDTH, TITLE_POINTS)
    figure.suptitle(text, x=0.01, ha="left", fontsize=TITLE_POINTS, fontweight="bold")
    return figure


def dress(axes: Axes, *, x: str = "", y: str = "", title: str = "") -> None:
    """Give axes their labels and title, a light grid, no frame above and at the right, and text of our sizes."""
    axes.set_xlabel(x, fontsize=LABEL_POINTS)
    axes.set_ylabel(y, fontsize=LABEL_POINTS)
    axes.set_title(title, loc="left", fontsize=LABEL_POINTS)
    axes.tick_params(labelsize=LABEL_POINTS)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    axes.set_axisbelow(True)


def add_legend(figure: Figure, handles: Sequence[Any], names: Sequence[str], columns: int = 0) -> None:
    """A legend below the plots, in one row or in so many columns."""
    figure.legend(
        handles, names, loc="outside lower center", ncols=columns or len(names), fontsize=LABEL_POINTS, frameon=False
    )


def line_looks(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Colour, line and marker for each name, as arguments of `Axes.plot`; well-known methods always look the same.

    >>> {name: look["color"] for name, look in line_looks(["trim", "script"]).items()}
    {'trim': '#d55e00', 'script': '#0072b2'}
    """
    fixed = {name: FIXED_LOOKS[name] for name in names if name in FIXED_LOOKS}
    free = [color for color in COLORS if color not in {color for color, _ in fixed.values()}]
    others = [name for name in names if name not in fixed]
    looks = fixed | {name: (free[i % len(free)], "-") for i, name in enumerate(others)}
    return {
        name: {"color": looks[name][0], "linestyle": looks[name][1], "marker": MARKERS[i % len(MARKERS)]}
        for i, name in enumerate(names)
    }


def ink(color: str) -> tuple[float, float, float]:
    """The colour for words: darker than that of a line, which is faint in thin letters.

    >>> ink("#ffffff")
    (0.7, 0.7, 0.7)
    """
    from matplotlib.colors import to_rgb

    red, green, blue = to_rgb(color)
    return 0.7 * red, 0.7 * green, 0.7 * blue

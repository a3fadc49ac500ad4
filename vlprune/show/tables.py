"""Tables for the terminal: what was answered, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from vlprune.measure import Run

COLUMNS = ("LLM FLOPs", "KV bytes", "vision", "selection", "prefill", "decode", "rest", "total")
CAPTION = "times in ms; FLOPs: two per multiply-add, all tokens of the LLM, no vision tower"


def amount(value: float, unit: str = "") -> str:
    """A number with three figures and a decimal prefix.

    >>> amount(1234567), amount(999, "B"), amount(3.82e12), amount(9.996e5)
    ('1.23 M', '999 B', '3.82 T', '1 M')
    """
    for letter in ("", "k", "M", "G", "T"):
        if float(f"{value:.3g}") < 1000 or letter == "T":
            break
        value /= 1000
    return f"{value:.3g} {letter}{unit}".strip()


def milliseconds(seconds: float) -> str:
    """
    >>> milliseconds(0.00123), milliseconds(1.5)
    ('1.2', '1,500')
    """
    return f"{1000 * seconds:,.1f}" if seconds < 0.1 else f"{1000 * seconds:,.0f}"


def figures(runs: Sequence[Run]) -> dict[str, str]:
    """The medians of several runs, as `cost_table` prints them."""
    counted = [run.flops.total for run in runs if run.flops is not None]
    parts = {name: median(getattr(run.latency, name) for run in runs) for name in COLUMNS[2:]}
    return {
        "LLM FLOPs": amount(median(counted)) if counted else "",
        "KV bytes": amount(median(run.kv_bytes for run in runs), "B"),
        **{name: milliseconds(seconds) for name, seconds in parts.items()},
    }


def cost_table(rows: Sequence[tuple[str, dict[str, str]]]) -> Table:
    """One row per way of running, each a title and its `figures`; what is not known is left open."""
    from rich.table import Table

    table = Table(caption=CAPTION, caption_justify="left")
    table.add_column("visual tokens", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for title, known in rows:
        table.add_row(title, *(known.get(name) or "-" for name in COLUMNS))
    return table


def answer_table(
    questions: Sequence[tuple[str, str]], answers: Sequence[tuple[str, str]], titles: tuple[str, str]
) -> Table:
    """Questions with the true answer, then what was answered in two ways, right or wrong."""
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("question")
    for title in ("truth", *titles):
        table.add_column(title, no_wrap=True)
    for (question, truth), pair in zip(questions, answers):
        marked = [
            Text(f"✓ {answer}", "green") if answer == truth else Text(f"✗ {answer or '(nothing)'}", "red")
            for answer in pair
        ]
        table.add_row(question, truth, *marked)
    return table

"""Tables for the terminal: what was answered, and what it cost."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

    from vlprune.evaluation.compare import Way
    from vlprune.measure import Run
    from vlprune.methods import Method

COLUMNS = ("LLM FLOPs", "KV bytes", "question", "vision", "selection", "prefill", "decode", "rest", "total")
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


def compare_table(ways: Sequence[Way], vision: float) -> Table:
    """One row per way of answering; `vision` are the seconds of the vision tower, which ran once for all."""
    from rich.table import Table
    from rich.text import Text

    caption = (
        "visual tokens; times in ms. Total: all of generate (question, selection, prefill, decoding) but the vision "
        f"tower, which ran once for all ({milliseconds(vision)}). What drops tokens inside the LLM selects during the "
        "prefill."
    )
    table = Table(caption=caption, caption_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("answer", ratio=1)
    for title in ("entering", "layer average", "selection", "total"):
        table.add_column(title, justify="right", no_wrap=title != "layer average")
    for way in ways:
        if way.run is None:
            table.add_row(way.name, Text(f"cannot run: {way.reason}", "dim"), *["-"] * 4)
            continue
        latency = way.run.latency
        selection = milliseconds(latency.selection) if way.records else ""
        if way.staged:
            selection = "in prefill"
        entering, average = way.accounting
        times = (selection or "-", milliseconds(latency.total - latency.vision))
        table.add_row(way.name, Text(way.answer or "(nothing)"), f"{entering:,}", f"{average:,.1f}", *times)
    return table


def needs_table(methods: Sequence[Method], n: int, layers: int) -> Table:
    """What each method looks at, what it does to tokens, and what its budget comes to, of `n` in so many layers."""
    from rich.table import Table

    table = Table(
        caption=f"entering, layer average: visual tokens, of {n}, that enter an LLM of {layers} layers with "
        f"--keep {methods[0].keep}, and that one of its layers sees on average",
        caption_justify="left",
    )
    table.add_column("method", no_wrap=True)
    for title in ("the question", "tower's attention", "LLM's attention", "merges", "reorders"):
        table.add_column(title, justify="center", width=max(map(len, title.split())))
    for title in ("entering", "layer average"):
        table.add_column(title, justify="right", width=max(map(len, title.split())))
    for method in methods:
        inside = hasattr(method, "stages")
        asks = "by LLM" if inside else method.needs_query
        marks = (asks, method.needs_attention, inside, method.merges, method.reorders)
        entering, average = method.accounting(n, layers)
        words = [mark if isinstance(mark, str) else "yes" if mark else "-" for mark in marks]
        table.add_row(method.name, *words, f"{entering:,}", f"{average:,.1f}")
    return table


def settings_table(methods: Sequence[Method]) -> Table:
    """What each method does, its settings as `--set` takes them, and its presets."""
    from dataclasses import fields

    from rich.table import Table

    table = Table(show_lines=True)
    for title in ("method", "what it does", "settings (--set) and presets (--preset)"):
        table.add_column(title, no_wrap=title == "method", overflow="fold")
    for method in methods:
        named = [field.name for field in fields(method) if field.name != "keep"]
        settings = [f"{name}={typed(getattr(method, name))}" for name in named]
        does = (type(method).__doc__ or "").split("\n\n")[0].strip()
        told = [", ".join(settings)] * bool(settings) + [f"presets: {', '.join(method.presets)}"] * bool(method.presets)
        table.add_row(method.name, does, "\n".join(told) or "none")
    return table


def typed(value: object) -> str:
    """A setting as one would type it.

    >>> typed(None), typed(True), typed((2, 6, 15)), typed(0.3)
    ('none', 'true', '2,6,15', '0.3')
    """
    if isinstance(value, tuple):
        return ",".join(map(typed, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)

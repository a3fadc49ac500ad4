"""Tables for the terminal: answers, their costs, methods and families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from vlprune.measure.format import format_amount, format_milliseconds

if TYPE_CHECKING:
    from rich.table import Table

    from vlprune.evaluation.compare import MethodResult
    from vlprune.measure import GenerationCost
    from vlprune.methods import Method
    from vlprune.models import Family

#: The columns of `cost_table`: what is measured, and its title.
COST_COLUMNS = {
    "flops": "LLM FLOPs",
    "kv_bytes": "KV bytes",
    **{part: part for part in ("question", "vision", "selection", "prefill", "decode", "rest", "total")},
}
CAPTION = "times in ms; FLOPs: two per multiply-add, all tokens of the LLM, no vision tower"


def median_costs(runs: Sequence[GenerationCost]) -> dict[str, float]:
    """The median of each column of `cost_table` over several runs; without "flops" where no formula is known."""
    flops = [run.flops.total for run in runs if run.flops is not None]
    seconds = {part: median(getattr(run.latency, part) for run in runs) for part in list(COST_COLUMNS)[2:]}
    counted = {"flops": median(flops)} if flops else {}
    return {**counted, "kv_bytes": median(run.kv_bytes for run in runs), **seconds}


def cost_table(rows: Sequence[tuple[str, Mapping[str, float]]]) -> Table:
    """A table with one row per title and its costs (operations, bytes, seconds), "-" for those that are not known."""
    from rich.table import Table

    table = Table(caption=CAPTION, caption_justify="left")
    table.add_column("visual tokens", no_wrap=True)
    for title in COST_COLUMNS.values():
        table.add_column(title, justify="right", no_wrap=True)
    for title, costs in rows:
        table.add_row(title, *(_format_cost(name, costs[name]) if name in costs else "-" for name in COST_COLUMNS))
    return table


def _format_cost(name: str, value: float) -> str:
    """A cell of `cost_table`."""
    if name in ("flops", "kv_bytes"):
        return format_amount(value, "B" if name == "kv_bytes" else "")
    return format_milliseconds(value)


def answer_table(
    questions: Sequence[tuple[str, str]], answers: Sequence[tuple[str, str]], titles: tuple[str, str]
) -> Table:
    """Questions with their true answers, then two answers to each, marked as right or wrong."""
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


def compare_table(results: Sequence[MethodResult], vision: float) -> Table:
    """One row per method; `vision` are the seconds of the vision tower, which ran once for all."""
    from rich.table import Table
    from rich.text import Text

    caption = (
        "visual tokens; times in ms. Total: all of generate (question, selection, prefill, decoding) but the vision "
        f"tower, which ran once for all ({format_milliseconds(vision)}). What drops tokens inside the LLM selects "
        "during the prefill."
    )
    table = Table(caption=caption, caption_justify="left")
    table.add_column("method", no_wrap=True)
    table.add_column("answer", ratio=1)
    for title in ("entering", "layer average", "selection", "total"):
        table.add_column(title, justify="right", no_wrap=title != "layer average")
    for result in results:
        if result.cost is None:
            table.add_row(result.name, Text(f"cannot run: {result.reason}", "dim"), *["-"] * 4)
            continue
        latency = result.cost.latency
        selection = format_milliseconds(latency.selection) if result.records else ""
        if result.prunes_in_llm:
            selection = "in prefill"
        entering, average = result.accounting
        times = (selection or "-", format_milliseconds(latency.total - latency.vision))
        table.add_row(result.name, Text(result.answer or "(nothing)"), f"{entering:,}", f"{average:,.1f}", *times)
    return table


def needs_table(methods: Sequence[Method], n: int, layers: int) -> Table:
    """What each method needs, what it does to tokens, and how many of `n` it leaves to an LLM of so many layers."""
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
        inside = hasattr(method, "cut_schedule")
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
        settings = [f"{name}={format_setting(getattr(method, name))}" for name in named]
        does = (type(method).__doc__ or "").split("\n\n")[0].strip()
        told = [", ".join(settings)] * bool(settings) + [f"presets: {', '.join(method.presets)}"] * bool(method.presets)
        table.add_row(method.name, does, "\n".join(told) or "none")
    return table


def families_table(families: Sequence[Family]) -> Table:
    """What is pruned of each family of models, how, and with what it was tested."""
    from rich.table import Table

    classes = [name for family in families for name in family.classes]
    table = Table(show_lines=True)
    table.add_column("family and classes", overflow="fold", width=max(len(name) for name in classes))
    for title, width in (("what is pruned", None), ("positions", 10), ("relevance", 15), ("tested with", None)):
        table.add_column(title, overflow="fold", width=width)
    for family in families:
        named = "\n".join(family.classes) or "any other with image placeholders"
        positions = "\n".join(family.positions)
        table.add_row(f"[bold]{family.name}[/]\n{named}", family.prunes, positions, family.relevance, family.tested)
    return table


def format_setting(value: object) -> str:
    """A setting as one would type it.

    >>> format_setting(None), format_setting(True), format_setting((2, 6, 15)), format_setting(0.3)
    ('none', 'true', '2,6,15', '0.3')
    """
    if isinstance(value, tuple):
        return ",".join(map(format_setting, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)

"""Tables for the terminal: answers, their costs, methods and families."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

from vlprune.measure.fitted_table import Column, FittedTable
from vlprune.measure.format import format_amount, format_milliseconds

if TYPE_CHECKING:
    from vlprune.evaluation.compare import MethodResult
    from vlprune.measure import GenerationCost
    from vlprune.methods import Method
    from vlprune.models import Family

PARTS = ("question", "vision", "selection", "prefill", "decode", "rest", "total")
#: The columns of `cost_table`, what matters first: what is measured, and its title.
COST_COLUMNS = {
    "faster": Column("faster", number=True),
    "kv_bytes": Column("KV cache", number=True),
    "flops": Column("LLM FLOPs", number=True),
    "total": Column("total ms", number=True),
    "prefill": Column("prefill ms", number=True),
    **{part: Column(f"{part} ms", number=True, extra=True) for part in PARTS if part not in ("prefill", "total")},
}
CAPTION = (
    "{faster}total: all of generate, vision included; FLOPs: two per multiply-add, all tokens of the LLM, "
    "no vision tower"
)


def median_costs(runs: Sequence[GenerationCost]) -> dict[str, float]:
    """The median of each cost over several runs; without "flops" where no formula is known."""
    flops = [run.flops.total for run in runs if run.flops is not None]
    seconds = {part: median(getattr(run.latency, part) for run in runs) for part in PARTS}
    counted = {"flops": median(flops)} if flops else {}
    return {**counted, "kv_bytes": median(run.kv_bytes for run in runs), **seconds}


def cost_table(rows: Sequence[tuple[str, Mapping[str, float]]], *, wide: bool = False) -> FittedTable:
    """A table with one row per title and its costs (operations, bytes, seconds), "-" for those that are not known.

    How much faster a row is than the first is said where both were timed.
    """
    timed = rows[0][1].get("total")
    ratios = [
        {"faster": timed / costs["total"]} if timed and i and costs.get("total") else {}
        for i, (_, costs) in enumerate(rows)
    ]
    known = [{**costs, **ratio} for (_, costs), ratio in zip(rows, ratios)]
    shown = [name for name in COST_COLUMNS if any(name in costs for costs in known)]
    cells = [[_format_cost(name, costs[name]) if name in costs else "-" for name in shown] for costs in known]
    columns = [Column("visual tokens"), *(COST_COLUMNS[name] for name in shown)]
    caption = CAPTION.format(faster="faster: the total of the first row by this one's; " if "faster" in shown else "")
    return FittedTable(columns, [[title, *line] for (title, _), line in zip(rows, cells)], caption=caption, wide=wide)


def _format_cost(name: str, value: float) -> str:
    """A cell of `cost_table`."""
    if name == "faster":
        return f"{value:.1f}×"
    if name in ("flops", "kv_bytes"):
        return format_amount(value, "B" if name == "kv_bytes" else "")
    return format_milliseconds(value)


def answer_table(
    questions: Sequence[tuple[str, str]], answers: Sequence[tuple[str, str]], titles: tuple[str, str]
) -> FittedTable:
    """Questions with their true answers, then two answers to each, marked as right or wrong."""
    from rich.text import Text

    def mark(answer: str, truth: str) -> Text:
        right = answer == truth
        return Text(f"✓ {answer}", "green") if right else Text(f"✗ {answer or '(nothing)'}", "red")

    rows: list[list[str | Text]] = [
        [question, truth, *(mark(answer, truth) for answer in pair)]
        for (question, truth), pair in zip(questions, answers)
    ]
    return FittedTable([Column("question", prose=20), *map(Column, ("truth", *titles))], rows)


def compare_table(results: Sequence[MethodResult], vision: float, *, wide: bool = False) -> FittedTable:
    """One row per method; `vision` are the seconds of the vision tower, which ran once for all."""
    from rich.text import Text

    def seconds(result: MethodResult) -> float:
        return result.cost.latency.total - result.cost.latency.vision if result.cost is not None else 0.0

    columns = [
        Column("method"),
        Column("answer", prose=16),
        *(Column(title, number=True) for title in ("tokens entering", "faster", "KV cache", "total ms")),
        *(Column(title, number=True, extra=True) for title in ("layer average", "selection ms")),
    ]
    caption = (
        "total: all of generate (question, selection, prefill, decoding) but the vision tower, which ran once for all "
        f"({format_milliseconds(vision)} ms); faster: the total of all tokens by this one. What drops tokens "
        "inside the LLM selects during the prefill."
    )
    whole = seconds(results[0])
    rows: list[list[str | Text]] = []
    for result in results:
        if result.cost is None:
            rows.append([result.name, Text(f"cannot run: {result.reason}", "dim"), *["-"] * 6])
            continue
        selection = format_milliseconds(result.cost.latency.selection) if result.records else "-"
        entering, average = result.accounting
        faster = f"{whole / seconds(result):.1f}×" if result.records and seconds(result) else "-"
        rows.append(
            [
                *(result.name, Text(result.answer or "(nothing)"), f"{entering:,}", faster),
                *(format_amount(result.cost.kv_bytes, "B"), format_milliseconds(seconds(result))),
                *(f"{average:,.1f}", "in prefill" if result.prunes_in_llm else selection),
            ]
        )
    return FittedTable(columns, rows, caption=caption, wide=wide)


def needs_table(methods: Sequence[Method], n: int, layers: int, *, wide: bool = False) -> FittedTable:
    """What each method needs, what it does to tokens, and how many of `n` it leaves to an LLM of so many layers."""
    caption = (
        f"entering: visual tokens, of {n}, that enter an LLM of {layers} layers with --keep {methods[0].keep}; "
        "layer average: those that one of its layers sees on average"
    )
    columns = [
        *map(Column, ("method", "the question", "tower's attention", "LLM's attention", "merges")),
        Column("reorders", extra=True),
        Column("entering", number=True),
        Column("layer average", number=True, extra=True),
    ]
    rows = []
    for method in methods:
        inside = hasattr(method, "cut_schedule")
        asks = "by LLM" if inside else method.needs_query
        marks = (asks, method.needs_attention, inside, method.merges, method.reorders)
        entering, average = method.accounting(n, layers)
        words = [mark if isinstance(mark, str) else "yes" if mark else "-" for mark in marks]
        rows.append([method.name, *words, f"{entering:,}", f"{average:,.1f}"])
    return FittedTable(columns, rows, caption=caption, wide=wide)


def settings_table(methods: Sequence[Method]) -> FittedTable:
    """What each method does, its settings and presets as `--methods` takes them."""
    from dataclasses import fields

    columns = [Column("method"), Column("what it does", prose=24), Column("settings and presets", prose=20)]
    rows = []
    for method in methods:
        named = [field.name for field in fields(method) if field.name != "keep"]
        settings = [f"{name}={format_setting(getattr(method, name))}" for name in named]
        does = " ".join((type(method).__doc__ or "").split("\n\n")[0].split())
        told = [", ".join(settings)] * bool(settings) + [f"presets: {', '.join(method.presets)}"] * bool(method.presets)
        rows.append([method.name, does, "\n".join(told) or "none"])
    return FittedTable(columns, rows, lines=True)


def families_table(families: Sequence[Family], *, wide: bool = False) -> FittedTable:
    """What is pruned of each family of models, how, and with what it was tested."""
    from rich.text import Text

    columns = [
        Column("family and classes"),
        Column("positions"),
        Column("what is pruned", prose=16),
        Column("relevance", extra=True, prose=20),
        Column("tested with", extra=True, prose=24),
    ]
    rows: list[list[str | Text]] = []
    for family in families:
        classes = "\n".join(family.classes) or "any other with image placeholders"
        named = Text.assemble((family.name, "bold"), "\n", classes)
        rows.append([named, "\n".join(family.positions), family.prunes, family.relevance, family.tested])
    return FittedTable(columns, rows, wide=wide, lines=True)


def format_setting(value: object) -> str:
    """A setting as one would type it.

    >>> format_setting(None), format_setting(True), format_setting((2, 6, 15)), format_setting(0.3)
    ('none', 'true', '2,6,15', '0.3')
    """
    if isinstance(value, tuple):
        return ",".join(map(format_setting, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)

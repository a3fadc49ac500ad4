"""How much Script depends on tau, gamma and the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vlprune.evaluation.accuracy import INTERVALS_NOTE, accuracy_cells, score_answers
from vlprune.evaluation.answers import Evaluation
from vlprune.evaluation.reference_methods import ALL_TOKENS, keep_all_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.methods import Method, Script

NEEDS, QUESTIONS, KEEP = "answers", (200, 16), (64,)
DEFAULT = Script()
VALUES: dict[str, tuple[Any, ...]] = {
    "tau": (0.1, 0.3, 0.5, 0.7, 0.9),
    "gamma": (1.0, 5.0, 10.0, 50.0, 100.0),
    "kernel": ("s", "s_prime"),
}


def study(evaluation: Evaluation) -> StudyResult:
    """Script with one setting changed at a time; the paper's values are marked."""
    cells: dict[str, Method] = {ALL_TOKENS: keep_all_tokens()}
    for keep in evaluation.keep:
        cells[f"defaults@{keep}"] = replace(DEFAULT, keep=keep)
        for name, values in VALUES.items():
            for value in values:
                if not _is_default(name, value):
                    cells[_cell(name, value, keep)] = replace(DEFAULT, **{"keep": keep, name: value})
    lines = evaluation.ask(cells)
    scores = {name: score_answers(evaluation, found, lines[ALL_TOKENS]) for name, found in lines.items()}
    tables = [_table(keep, scores) for keep in evaluation.keep]
    return StudyResult("Sensitivity", tables, {"sensitivity": _figure(evaluation, scores)}, {"scores": scores})


def _is_default(name: str, value: Any) -> bool:
    return bool(value == getattr(DEFAULT, name))


def _cell(name: str, value: Any, keep: int | float) -> str:
    """The cell with the answers of a setting; the defaults are asked once for all settings."""
    return f"defaults@{keep}" if _is_default(name, value) else f"{name}={value}@{keep}"


def _table(keep: int | float, scores: Mapping[str, Any]) -> ResultTable:
    rows = []
    for name, values in VALUES.items():
        for value in values:
            text = f"{value:g}" if isinstance(value, float) else value
            mark = " (the paper's)" if _is_default(name, value) else ""
            rows.append([name, text + mark, *accuracy_cells(scores[_cell(name, value, keep)])])
    columns = ["setting", "value", "right", "relative to all tokens"]
    return ResultTable(f"Settings of Script, keeping {keep}", columns, rows, INTERVALS_NOTE)


def _figure(evaluation: Evaluation, scores: Mapping[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for axes, (name, values) in zip(figure.subplots(1, len(VALUES), sharey=True), VALUES.items()):
        for keep in evaluation.keep:
            found = [scores[_cell(name, value, keep)] for value in values]
            means = [100 * one["accuracy"] for one in found]
            ends = [[abs(mean - 100 * one["interval"][i]) for mean, one in zip(means, found)] for i in (0, 1)]
            axes.errorbar([str(value) for value in values], means, ends, marker="o", capsize=3, label=f"keep {keep}")
        axes.set(xlabel=name)
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("right answers, %")
    figure.axes[0].legend(fontsize=8)
    return figure

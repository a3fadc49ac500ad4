"""How much Script depends on tau, gamma and the kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vlprune.evaluation.accuracy import INTERVALS_NOTE, accuracy_cells, percent_interval, score_answers
from vlprune.evaluation.answers import Evaluation
from vlprune.evaluation.plots import plot_rows
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
    rows = {}
    for name, values in VALUES.items():
        for value in values:
            text = f"{name} {value:g}" if isinstance(value, float) else f"{name} {value}"
            found = {f"keep {keep}": percent_interval(scores[_cell(name, value, keep)]) for keep in evaluation.keep}
            rows[text + " (the paper's)" * _is_default(name, value)] = found
    across = {f"keep {keep}": 100 * scores[f"defaults@{keep}"]["accuracy"] for keep in evaluation.keep}
    note = "Dashed: the paper's settings. Bars are 95 % intervals"
    title = "Script with one setting changed at a time"
    return plot_rows(rows, x="right answers, %", title=title, note=note, across=across)

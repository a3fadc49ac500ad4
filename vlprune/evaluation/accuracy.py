"""Accuracy of every method at every budget: `vlprune eval`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vlprune.errors import UserError
from vlprune.evaluation.answers import AnswerLine, Evaluation
from vlprune.evaluation.plots import Point, plot_curves
from vlprune.evaluation.reference_methods import ALL_TOKENS, keep_all_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import mcnemar, relative_accuracy, wilson_interval
from vlprune.methods import Method

INTERVALS_NOTE = (
    "Right answers in %. Brackets: 95 % intervals; of shares by Wilson's score, of what is relative to all tokens by a "
    "paired bootstrap over images."
)
COUNTS_NOTE = (
    "Entering, layer average: visual tokens that enter the LLM, and that one of its layers sees on average; compare "
    "methods at equal numbers in one of the two."
)
KINDS_NOTE = "Right answers in %; the JSON has the counts."
AHEAD_NOTE = "p is McNemar's, exact and two-sided, not corrected for the number of comparisons. No rows: nowhere."


class _Row(NamedTuple):
    """A row of the tables: a method, its budget, and the cell of the run that has its answers."""

    method: str
    keep: str
    cell: str


def evaluate_methods(evaluation: Evaluation, methods: Mapping[str, Mapping[str, Method]]) -> StudyResult:
    """Score methods, given by name and then by budget as in {"script": {"64": Script(keep=64)}}.

    A method that the model cannot run is listed with the reason.
    """
    cells = {ALL_TOKENS: keep_all_tokens()}
    cells |= {cell_name(name, keep): method for name, by_keep in methods.items() for keep, method in by_keep.items()}
    lines = evaluation.ask(cells, skip_unsupported=True)
    refused = {name: reason for name, reason in evaluation.run_folder.refused.items() if name in cells}
    if len(lines) == 1:
        raise UserError(next(f"{name}: {reason}" for name, reason in refused.items()))
    scores = {name: score_answers(evaluation, found, lines[ALL_TOKENS]) for name, found in lines.items()}
    rows = _table_rows(methods, scores)
    tables = [_accuracy_table(evaluation, rows, scores)]
    if len(evaluation.kinds) > 1:
        tables.append(_kinds_table(evaluation, rows, scores))
    if len(evaluation.kinds) > 1 and "script" in methods and len(methods) > 1:
        tables.append(_ahead_table(evaluation, methods, lines))
    if refused:
        tables.append(ResultTable("Could not run", ["method", "why"], [list(pair) for pair in refused.items()]))
    figures = {"accuracy": _figure(rows, scores)}
    return StudyResult("Accuracy under pruning", tables, figures, {"scores": scores})


def cell_name(method: str, keep: str | float) -> str:
    """The name of the cell with the answers of a method at a budget."""
    return f"{method}@{keep}"


def _table_rows(methods: Mapping[str, Mapping[str, Method]], scores: Mapping[str, Any]) -> list[_Row]:
    """All tokens, then budget by budget the methods that could run."""
    budgets = list(dict.fromkeys(keep for by_keep in methods.values() for keep in by_keep))
    rows = [
        _Row(name, keep, cell_name(name, keep))
        for keep in budgets
        for name, by_keep in methods.items()
        if keep in by_keep and cell_name(name, keep) in scores
    ]
    return [_Row(ALL_TOKENS, "", ALL_TOKENS), *rows]


def _accuracy_table(evaluation: Evaluation, rows: Sequence[_Row], scores: Mapping[str, Any]) -> ResultTable:
    """Tokens entering and per layer, right answers and what they are relative to all tokens, with intervals."""
    cells = []
    for method, keep, at in rows:
        one = scores[at]
        counts = [f"{one['entering']:.4g}", f"{one['layer_average']:.4g}"]
        right, relative = accuracy_cells(one)
        cells.append([method, keep, *counts, right, "" if at == ALL_TOKENS else relative])
    images = len({question.image_name for question in evaluation.questions})
    counted = f"{len(evaluation.questions):,} questions about {images:,} images. "
    columns = ["method", "keep", "entering", "layer average", "right", "relative to all tokens"]
    return ResultTable("Accuracy", columns, cells, f"{counted}{INTERVALS_NOTE} {COUNTS_NOTE}")


def _kinds_table(evaluation: Evaluation, rows: Sequence[_Row], scores: Mapping[str, Any]) -> ResultTable:
    """Right answers to each kind of question, and to all."""
    cells = [[method, keep, *percent_by_kind(scores[at]), percent(scores[at]["accuracy"])] for method, keep, at in rows]
    columns = ["method", "keep", *evaluation.kinds, "all"]
    return ResultTable("Accuracy by kind of question", columns, cells, KINDS_NOTE)


def _ahead_table(
    evaluation: Evaluation, methods: Mapping[str, Mapping[str, Method]], lines: Mapping[str, Sequence[AnswerLine]]
) -> ResultTable:
    """Every kind of question and budget for which some method answers more than Script does."""
    rows = []
    for keep in methods["script"]:
        for kind in evaluation.kinds:
            right = {
                name: _outcomes_of_kind(evaluation, lines[cell_name(name, keep)], kind)
                for name in methods
                if name != "oracle" and cell_name(name, keep) in lines
            }
            mine = right.pop("script", [])
            for name, its in right.items():
                if sum(its) > sum(mine):
                    only, only_it, p = mcnemar(mine, its)
                    rows.append([name, keep, kind, str(sum(mine)), str(sum(its)), str(only), str(only_it), f"{p:.2g}"])
    columns = ["method", "keep", "kind", "script right", "it right", "only script", "only it", "p"]
    return ResultTable("Where a method answers more than script", columns, rows, AHEAD_NOTE)


def outcomes(lines: Sequence[AnswerLine]) -> list[bool]:
    """Whether each answer is right."""
    return [bool(line["right"]) for line in lines]


def _outcomes_of_kind(evaluation: Evaluation, lines: Sequence[AnswerLine], kind: str) -> list[bool]:
    """Whether each answer to a question of that kind is right."""
    return [right for question, right in zip(evaluation.questions, outcomes(lines)) if question.kind == kind]


def score_answers(
    evaluation: Evaluation, lines: Sequence[AnswerLine], all_tokens_lines: Sequence[AnswerLine]
) -> dict[str, Any]:
    """Right and asked per kind, the accuracy, the same relative to the answers with all tokens, and token counts."""
    right = outcomes(lines)
    kinds = {kind: _outcomes_of_kind(evaluation, lines, kind) for kind in evaluation.kinds}
    images = [question.image_name for question in evaluation.questions]
    relative, *relative_interval = relative_accuracy(right, outcomes(all_tokens_lines), images)
    return {
        "right": {kind: sum(found) for kind, found in kinds.items()},
        "asked": {kind: len(found) for kind, found in kinds.items()},
        "accuracy": sum(right) / len(right),
        "interval": list(wilson_interval(sum(right), len(right))),
        "relative": relative,
        "relative_interval": relative_interval,
        "entering": sum(line["entering"] for line in lines) / len(lines),
        "layer_average": sum(line["average"] for line in lines) / len(lines),
    }


def percent_by_kind(score: Mapping[str, Any]) -> list[str]:
    """The percentage of right answers to each kind of question."""
    return [percent(score["right"][kind] / asked) for kind, asked in score["asked"].items()]


def accuracy_cells(score: Mapping[str, Any]) -> list[str]:
    """The accuracy, and that relative to all tokens, as percentages with intervals."""
    return [
        percent_with_interval(score["accuracy"], score["interval"]),
        percent_with_interval(score["relative"], score["relative_interval"]),
    ]


def percent_with_interval(value: float, ends: Sequence[float]) -> str:
    """A share and its interval as percentages.

    >>> percent_with_interval(0.5, (0.4, 0.6))
    '50.0 [40.0, 60.0]'
    """
    return f"{percent(value)} [{percent(ends[0])}, {percent(ends[1])}]"


def percent(value: float) -> str:
    """A share as a percentage with one decimal.

    >>> percent(0.9944)
    '99.4'
    """
    return f"{100 * value:.1f}"


def accuracy_point(score: Mapping[str, Any], x: str = "entering") -> Point:
    """The score as a point of `plot_curves`: `x`, the accuracy in percent, and the ends of its interval."""
    low, high = score["interval"]
    return score[x], 100 * score["accuracy"], 100 * low, 100 * high


def _figure(rows: Sequence[_Row], scores: Mapping[str, Mapping[str, Any]]) -> Any:
    """Accuracy against tokens: a curve for each method, and a line for all tokens."""
    curves: dict[str, list[Point]] = {}
    for method, _, at in rows[1:]:
        curves.setdefault(method, []).append(accuracy_point(scores[at], "layer_average"))
    unpruned = scores[ALL_TOKENS]
    flat = {f"all {unpruned['entering']:.0f} tokens": 100 * unpruned["accuracy"]}
    return plot_curves(curves, flat=flat, x="visual tokens, mean over the LLM's layers", y="right answers, %")

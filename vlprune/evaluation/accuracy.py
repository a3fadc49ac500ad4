"""Accuracy of every method at every budget: `vlprune eval`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vlprune.errors import UserError
from vlprune.evaluation.answers import AnswerLine, Evaluation
from vlprune.evaluation.macro_mean import macro_mean
from vlprune.evaluation.official_scores import official_table
from vlprune.evaluation.plots import Point, plot_curves
from vlprune.evaluation.reference_methods import ALL_TOKENS, keep_all_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import format_p, mcnemar, relative_accuracy, wilson_interval
from vlprune.measure.format import format_kl
from vlprune.methods import Method

INTERVALS_NOTE = (
    "Right answers in %. Brackets: 95 % intervals; of shares by Wilson's score, of what is relative to all tokens by a "
    "paired bootstrap over images, or by Wilson's score for 0 of the images where the bootstrap has no spread."
)
COUNTS_NOTE = (
    "Entering, layer average: visual tokens that enter the LLM, and that one of its layers sees on average; compare "
    "methods at equal numbers in one of the two."
)
KINDS_NOTE = (
    "Right answers in %; the JSON has the counts. All: of all questions together. Mean of kinds: each kind counts the "
    "same, as benchmarks do in the paper; relative: to that with all tokens."
)
DISCREPANCY_NOTE = (
    "What Eq. 1 of the paper minimises; it needs no labels. KL: how far the first answer token's distribution is "
    "from that with all tokens, in nats, mean over questions. Same answer: in % of the questions, with Wilson's 95 % "
    "interval."
)
P_NOTE = "p: of the difference to {} at the same budget, McNemar's, exact and two-sided, not corrected."
AHEAD_NOTE = "p is McNemar's, exact and two-sided, not corrected for the number of comparisons. No rows: nowhere."
MAX_DRAWN = 6  # curves in the figure; with the line of all tokens seven


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
    lines = evaluation.ask(cells, skip_unsupported=True, reference=ALL_TOKENS)
    refused = {name: reason for name, reason in evaluation.run_folder.refused.items() if name in cells}
    if ALL_TOKENS not in lines or len(lines) == 1:
        raise UserError(next(f"{name}: {reason}" for name, reason in refused.items()))
    scores = {name: score_answers(evaluation, found, lines[ALL_TOKENS]) for name, found in lines.items()}
    rows = _table_rows(methods, scores)
    first = "script" if "script" in methods else next(iter(methods))
    p_values = _p_values(first, methods, lines)
    tables = [_accuracy_table(evaluation, rows, scores, first, p_values)]
    if any(question.rule and question.answers for question in evaluation.questions):
        tables.append(official_table(evaluation.questions, [(row.method, row.keep, lines[row.cell]) for row in rows]))
    if len(evaluation.kinds) > 1:
        tables.append(_kinds_table(evaluation, rows, scores))
    tables.append(_discrepancy_table(rows[1:], scores))
    if len(evaluation.kinds) > 1 and "script" in methods and len(methods) > 1:
        tables.append(_ahead_table(evaluation, methods, lines))
    if refused:
        tables.append(ResultTable("Could not run", ["method", "why"], [list(pair) for pair in refused.items()]))
    figures = {"accuracy": _figure(rows, scores)}
    return StudyResult("Accuracy under pruning", tables, figures, {"scores": scores, "p": {first: p_values}})


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


def _p_values(
    first: str, methods: Mapping[str, Mapping[str, Method]], lines: Mapping[str, Sequence[AnswerLine]]
) -> dict[str, float]:
    """McNemar's p of each other method's answers against those of `first` at the same budget, by cell."""
    return {
        cell_name(name, keep): mcnemar(outcomes(lines[cell_name(first, keep)]), outcomes(lines[cell_name(name, keep)]))[
            2
        ]
        for name, by_keep in methods.items()
        for keep in by_keep
        if name != first and cell_name(first, keep) in lines and cell_name(name, keep) in lines
    }


def _accuracy_table(
    evaluation: Evaluation, rows: Sequence[_Row], scores: Mapping[str, Any], first: str, p_values: Mapping[str, float]
) -> ResultTable:
    """Tokens entering and per layer, right answers and what they are relative to all tokens, and p against `first`."""
    cells = []
    for method, keep, at in rows:
        one = scores[at]
        counts = [f"{one['entering']:.4g}", f"{one['layer_average']:.4g}"]
        right, relative = accuracy_cells(one)
        p = format_p(p_values[at]) if at in p_values else ""
        cells.append([method, keep, *counts, right, "" if at == ALL_TOKENS else relative, p])
    images = len({question.image_name for question in evaluation.questions})
    counted = f"{len(evaluation.questions):,} questions about {images:,} images. "
    columns = ["method", "keep", "entering", "layer average", "right", "relative to all tokens", "p"]
    note = f"{counted}{INTERVALS_NOTE} {P_NOTE.format(first)} {COUNTS_NOTE}"
    return ResultTable("Accuracy", columns, cells, note)


def _kinds_table(evaluation: Evaluation, rows: Sequence[_Row], scores: Mapping[str, Any]) -> ResultTable:
    """Right answers to each kind of question, and to all."""
    cells = []
    for method, keep, at in rows:
        one = scores[at]
        relative = "-" if one["macro_relative"] is None else percent(one["macro_relative"])
        macro = [percent(one["accuracy"]), percent(one["macro"]), relative]
        cells.append([method, keep, *percent_by_kind(one), *macro])
    columns = ["method", "keep", *evaluation.kinds, "all", "mean of kinds", "relative"]
    return ResultTable("Accuracy by kind of question", columns, cells, KINDS_NOTE)


def _discrepancy_table(rows: Sequence[_Row], scores: Mapping[str, Any]) -> ResultTable:
    """How far outputs are from those with all tokens."""
    cells = []
    for method, keep, at in rows:
        one = scores[at]
        kl = "-" if one["kl"] is None else format_kl(one["kl"])
        cells.append([method, keep, kl, percent_with_interval(one["agreement"], one["agreement_interval"])])
    columns = ["method", "keep", "KL of the first token", "same answer"]
    return ResultTable("Outputs beside those with all tokens", columns, cells, DISCREPANCY_NOTE)


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
                    rows.append([name, keep, kind, str(sum(mine)), str(sum(its)), str(only), str(only_it), format_p(p)])
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
    """Right and asked per kind, the accuracy, the same relative to the answers with all tokens, and token counts.

    `macro` is the mean over kinds, `kl` the mean divergence from the outputs with all tokens (None where it was not
    measured), and `agreement` the share of answers that are the same.
    """
    right = outcomes(lines)
    kinds = {kind: _outcomes_of_kind(evaluation, lines, kind) for kind in evaluation.kinds}
    images = [question.image_name for question in evaluation.questions]
    unpruned = outcomes(all_tokens_lines)
    relative, relative_interval = relative_accuracy(right, unpruned, images) or (None, None)
    macro, whole = macro_mean(evaluation.questions, right), macro_mean(evaluation.questions, unpruned)
    same = sum(line["answer"] == other["answer"] for line, other in zip(lines, all_tokens_lines))
    divergences = [line["kl"] for line in lines if "kl" in line]
    return {
        "right": {kind: sum(found) for kind, found in kinds.items()},
        "asked": {kind: len(found) for kind, found in kinds.items()},
        "accuracy": sum(right) / len(right),
        "interval": list(wilson_interval(sum(right), len(right))),
        "relative": relative,
        "relative_interval": relative_interval,
        "entering": sum(line["entering"] for line in lines) / len(lines),
        "layer_average": sum(line["average"] for line in lines) / len(lines),
        "macro": macro,
        "macro_relative": macro / whole if whole else None,
        "kl": sum(divergences) / len(lines) if len(divergences) == len(lines) else None,
        "agreement": same / len(lines),
        "agreement_interval": list(wilson_interval(same, len(lines))),
    }


def percent_by_kind(score: Mapping[str, Any]) -> list[str]:
    """The percentage of right answers to each kind of question."""
    return [percent(score["right"][kind] / asked) for kind, asked in score["asked"].items()]


def accuracy_cells(score: Mapping[str, Any]) -> list[str]:
    """The accuracy, and that relative to all tokens, as percentages with intervals."""
    return [
        percent_with_interval(score["accuracy"], score["interval"]),
        "-" if score["relative"] is None else percent_with_interval(score["relative"], score["relative_interval"]),
    ]


def percent_with_interval(value: float, ends: Sequence[float]) -> str:
    """A share and its interval as percentages, the ends with as many decimals as tell them apart.

    >>> percent_with_interval(0.5, (0.4, 0.6)), percent_with_interval(1.0, (0.9998, 1.0))
    ('50.0 [40.0, 60.0]', '100.0 [99.98, 100.00]')
    """
    low, high = (100 * end for end in ends)
    digits = next((n for n in range(1, 6) if f"{low:.{n}f}" != f"{high:.{n}f}"), 6)
    return f"{percent(value)} [{low:.{digits}f}, {high:.{digits}f}]"


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
    """Accuracy against tokens: a curve for each of `drawn_methods`, and a line for all tokens."""
    drawn = drawn_methods(rows, scores)
    curves: dict[str, list[Point]] = {name: [] for name in drawn}
    for method, _, at in rows[1:]:
        if method in curves:
            curves[method].append(accuracy_point(scores[at], "layer_average"))
    unpruned = scores[ALL_TOKENS]
    flat = {f"all {unpruned['entering']:.0f} tokens": 100 * unpruned["accuracy"]}
    left_out = len({row.method for row in rows[1:]}) - len(drawn)
    title = "Right answers with fewer visual tokens"
    if left_out:
        title += f"\nscript, script_plus, random, and the best at the smallest budget; {left_out} more are in the table"
    x = "visual tokens, mean over the LLM's layers (log scale)"
    return plot_curves(curves, flat=flat, x=x, y="right answers, %", title=title)


def drawn_methods(rows: Sequence[_Row], scores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The methods that the figure draws beside all tokens, `MAX_DRAWN` at most.

    These are script, script_plus, random and the oracle, if they were asked, and those of the others with most right
    answers at the smallest budget; the table has all.
    """
    smallest: dict[str, Mapping[str, Any]] = {}
    for method, _, at in rows[1:]:
        if method not in smallest or scores[at]["entering"] < smallest[method]["entering"]:
            smallest[method] = scores[at]
    always = [name for name in ("script", "script_plus", "random", "oracle") if name in smallest]
    others = sorted(set(smallest) - set(always), key=lambda name: (-smallest[name]["accuracy"], name))
    drawn = {*always, *others[: MAX_DRAWN - len(always)]}
    return [name for name in smallest if name in drawn]

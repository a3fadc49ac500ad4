"""Accuracy of every method at every budget: `vlprune eval`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vlprune.errors import UserError
from vlprune.evaluation.answers import AnswerLine, Evaluation
from vlprune.evaluation.macro_mean import macro_mean
from vlprune.evaluation.official_scores import official_table
from vlprune.evaluation.plots import Interval, Point, choose_curves, plot_curves
from vlprune.evaluation.reference_methods import ALL_TOKENS, keep_all_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import format_p, mcnemar, relative_accuracy, wilson_interval
from vlprune.evaluation.yes_no import yes_no_scores, yes_no_table
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
ALWAYS_DRAWN = ("script", "script_plus", "random", "oracle")  # in the figure, where they were asked


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
    yes_no = {name: yes_no_scores(evaluation.questions, found) for name, found in lines.items()}
    if yes_no[ALL_TOKENS]:
        tables.append(yes_no_table([(row.method, row.keep, yes_no[row.cell]) for row in rows]))
    if len(evaluation.kinds) > 1 and "script" in methods and len(methods) > 1:
        tables.append(_ahead_table(evaluation, methods, lines))
    if refused:
        tables.append(ResultTable("Could not run", ["method", "why"], [list(pair) for pair in refused.items()]))
    figures = {"accuracy": _figure(rows, scores)}
    data = {"scores": scores, "p": {first: p_values}, "yes_no": yes_no}
    return StudyResult("Accuracy under pruning", tables, figures, data)


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
    return score[x], *percent_interval(score)


def percent_interval(score: Mapping[str, Any]) -> Interval:
    """The score's accuracy and the ends of its interval in percent, as in `plot_rows`.

    >>> percent_interval({"accuracy": 0.5, "interval": (0.25, 0.75)})
    (50.0, 25.0, 75.0)
    """
    low, high = score["interval"]
    return 100 * score["accuracy"], 100 * low, 100 * high


def _figure(rows: Sequence[_Row], scores: Mapping[str, Mapping[str, Any]]) -> Any:
    """Accuracy against tokens: a curve for each method that `choose_curves` takes, and a line for all tokens."""
    curves: dict[str, list[Point]] = {}
    for method, _, cell in rows[1:]:
        curves.setdefault(method, []).append(accuracy_point(scores[cell], "layer_average"))
    drawn, note = curves_to_draw(curves)
    unpruned = scores[ALL_TOKENS]
    flat = {f"all {unpruned['entering']:.0f} tokens": 100 * unpruned["accuracy"]}
    title = "Right answers with fewer visual tokens"
    x = "visual tokens, mean over the LLM's layers (log scale); bars are 95 % intervals"
    return plot_curves(drawn, flat=flat, x=x, y="right answers, %", title=title, note=note)


def curves_to_draw(curves: Mapping[str, list[Point]]) -> tuple[dict[str, list[Point]], str]:
    """The curves of methods that a figure has room for, and the rule by which they were taken, in words.

    >>> curves_to_draw({"random": [(16, 50.0, 40.0, 60.0)]})[1]
    ''
    """
    drawn = {name: curves[name] for name in choose_curves(curves, ALWAYS_DRAWN)}
    left_out = len(curves) - len(drawn)
    if not left_out:
        return drawn, ""
    always = [name for name in ALWAYS_DRAWN if name in drawn]
    rule = ", ".join([*always, f"{'and ' * bool(always)}the best at the smallest budget"])
    return drawn, f"{rule}; {left_out} more are in the table"

"""A budget that follows the image, against a fixed one with the same mean."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from vlprune.budget import Budget
from vlprune.errors import UserError
from vlprune.evaluation.accuracy import (
    INTERVALS_NOTE,
    accuracy_point,
    outcomes,
    percent_by_kind,
    percent_with_interval,
    score_answers,
)
from vlprune.evaluation.answers import AnswerLine, Evaluation, generate_answers
from vlprune.evaluation.plots import plot_curves
from vlprune.evaluation.questions import ImageQuestion, pocket_questions
from vlprune.evaluation.reference_methods import ALL_TOKENS, keep_all_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import format_p, mcnemar
from vlprune.methods import Method, ScriptPlus
from vlprune.record import Record

NEEDS, QUESTIONS, KEEP = "scenes", (600, 16), (64, 32, 16, 8)
FIT_QUESTIONS = (100, 5)  # of each kind, to find the shares by; in full, and in small
SEED = 4  # of scenes that neither training nor another split uses
NOTE = (
    "The share is found on other scenes. Tokens: the mean over questions, and the means over the scenes with the "
    "fewest and with the most things. Lost, won: questions that only the fixed budget answers, and that only the "
    "adaptive one does; p is McNemar's, exact and two-sided."
)


def study(evaluation: Evaluation) -> StudyResult:
    """ScriptPlus with a fixed number of tokens, and with as many as the image needs, at equal means."""
    for keep in evaluation.keep:
        if not isinstance(keep, int):
            raise UserError(f"--keep {keep}: study adaptive takes means, which are numbers of tokens.")
    budgets = _fit_budgets(evaluation)
    cells: dict[str, Method] = {ALL_TOKENS: keep_all_tokens()}
    for keep in evaluation.keep:
        cells |= {f"fixed@{keep}": ScriptPlus(keep=keep), f"adaptive@{keep}": ScriptPlus(keep=budgets[keep])}
    lines = evaluation.ask(cells, details=count_things)
    rows = []
    data: dict[str, Any] = {}
    for keep in evaluation.keep:
        fixed, adaptive = (_score(evaluation, lines, f"{name}@{keep}") for name in ("fixed", "adaptive"))
        lost, won, p = mcnemar(outcomes(lines[f"fixed@{keep}"]), outcomes(lines[f"adaptive@{keep}"]))
        share = budgets[keep].adaptive
        adaptive |= {"share": share, "lost": lost, "won": won, "p": p}
        rows.append(["fixed", str(keep), "", *_cells(fixed), "", "", ""])
        rows.append(["adaptive", str(keep), f"{share:.3g}", *_cells(adaptive), str(lost), str(won), format_p(p)])
        data |= {f"fixed@{keep}": fixed, f"adaptive@{keep}": adaptive}
    columns = ["budget", "mean", "share", "tokens", "fewest things", "most things", "right", *evaluation.kinds]
    table = ResultTable("Adaptive budgets", [*columns, "lost", "won", "p"], rows, f"{INTERVALS_NOTE} {NOTE}")
    return StudyResult("Adaptive budgets", [table], {"adaptive": _figure(evaluation, data)}, {"scores": data})


def _fit_budgets(evaluation: Evaluation) -> dict[int | float, Budget]:
    """An adaptive budget with each mean, fitted to ScriptPlus's gains on scenes that are not asked about later."""
    questions = pocket_questions(SEED, FIT_QUESTIONS[evaluation.small])
    methods: dict[str, Method] = {str(k): ScriptPlus(keep=Budget(adaptive=0.0, mean=int(k))) for k in evaluation.keep}
    gains: dict[str, list[list[float]]] = {name: [] for name in methods}
    evaluation.expect(len(questions) * len(methods))
    for answered in generate_answers(evaluation.loaded, questions, methods, batch=evaluation.batch):
        gains[answered.method] += [record.gains.tolist() for (record,) in answered.records if record.gains is not None]
        evaluation.tick("finding shares", len(answered.questions))
    return {keep: _rounded(Budget.fit(gains[str(keep)], int(keep))) for keep in evaluation.keep}


def _rounded(budget: Budget) -> Budget:
    """The budget with its share rounded to three digits.

    Further digits depend on the number of threads, and a run that goes on must find its methods unchanged.

    >>> _rounded(Budget(adaptive=0.0123456, mean=8)).adaptive
    0.0123
    """
    return replace(budget, adaptive=float(f"{budget.adaptive:.3g}"))


def count_things(question: ImageQuestion, record: Record) -> dict[str, Any]:
    """The number of things in the scene, for the line of an answer."""
    return {"things": len(question.scene.things)} if question.scene is not None else {}


def _score(evaluation: Evaluation, lines: Mapping[str, Sequence[AnswerLine]], cell: str) -> dict[str, Any]:
    """The score of a cell, with the mean tokens by the number of things in the scene."""
    tokens: dict[int, list[int]] = {}
    for line in lines[cell]:
        tokens.setdefault(line["things"], []).append(line["entering"])
    by_things = {things: sum(counts) / len(counts) for things, counts in sorted(tokens.items())}
    return score_answers(evaluation, lines[cell], lines[ALL_TOKENS]) | {"by_things": by_things}


def _cells(score: Mapping[str, Any]) -> list[str]:
    """Mean tokens, those of scenes with the fewest and with the most things, and right answers, in all and by kind."""
    by_things = score["by_things"]
    tokens = [score["entering"], by_things[min(by_things)], by_things[max(by_things)]]
    right = percent_with_interval(score["accuracy"], score["interval"])
    return [*(f"{count:.1f}" for count in tokens), right, *percent_by_kind(score)]


def _figure(evaluation: Evaluation, data: Mapping[str, Any]) -> Any:
    curves = {
        name: [accuracy_point(data[f"{name}@{keep}"]) for keep in evaluation.keep] for name in ("fixed", "adaptive")
    }
    title = "The same number of tokens for every image, or as many as it needs"
    x = "visual tokens kept, mean over images (log scale); bars are 95 % intervals"
    return plot_curves(curves, flat={}, x=x, y="right answers, %", title=title)

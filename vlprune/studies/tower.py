"""Patches merged inside the vision tower: how much less it computes, and how many answers that costs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vlprune.errors import UnsupportedModel, UserError
from vlprune.evaluation.accuracy import (
    INTERVALS_NOTE,
    outcomes,
    percent,
    percent_by_kind,
    percent_interval,
    percent_with_interval,
    score_answers,
)
from vlprune.evaluation.answers import AnswerLine, Evaluation
from vlprune.evaluation.plots import plot_rows
from vlprune.evaluation.reference_methods import ALL_TOKENS, keep_all_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import format_p, mcnemar
from vlprune.methods import Method, Script
from vlprune.vision import CheaperTower
from vlprune.vision.cheaper_tower import TOWERS, find_towers
from vlprune.vision.operations import tower_operations

NEEDS, QUESTIONS, KEEP = "answers", (600, 5), (64,)
MERGES = (0.0, 0.1, 0.25, 0.5)
NOTE = (
    "Merge: the share of patches that are merged into others by the tower's last layer (ToMe), evenly over its layers; "
    "each then has the features of the token that it was merged into. Operations: multiply-adds in the tower's layers, "
    "in % of those without merging. Lost, won: questions that only the tower without merging answers, and that only "
    "this one does; p is McNemar's, exact and two-sided, not corrected for the number of rows."
)
KINDS_NOTE = "Right answers in %."


def study(evaluation: Evaluation) -> StudyResult:
    """All tokens and Script, on features of towers that merge more and more of their patches."""
    model = evaluation.loaded.model
    try:
        towers = find_towers(model, TOWERS)
    except UnsupportedModel as error:
        raise UserError(f"--model {evaluation.loaded.name}: {error}") from error
    methods: dict[str, Method] = {ALL_TOKENS: keep_all_tokens()}
    methods |= {f"script@{keep}": Script(keep=keep) for keep in evaluation.keep}
    lines: dict[str, list[AnswerLine]] = {}
    for merge in MERGES:
        with CheaperTower(model, merge=merge):
            lines |= evaluation.ask({_cell(name, merge): method for name, method in methods.items()})
    operations = {merge: sum(tower_operations(tower, merge) for tower in towers) for merge in MERGES}
    scores: dict[str, dict[str, Any]] = {}
    for name in methods:
        for merge in MERGES:
            plain, found = lines[_cell(name, 0.0)], lines[_cell(name, merge)]
            lost, won, p = mcnemar(outcomes(plain), outcomes(found))
            score = score_answers(evaluation, found, lines[_cell(ALL_TOKENS, 0.0)])
            score |= {"operations": operations[merge] / operations[0.0], "lost": lost, "won": won, "p": p}
            scores[_cell(name, merge)] = score
    title = "Patches merged inside the tower"
    rows = [_row(name, merge, scores) for name in methods for merge in MERGES]
    columns = ["tokens", "merge", "tower's operations, %", "right", "lost", "won", "p"]
    tables = [ResultTable(title, columns, rows, f"{INTERVALS_NOTE} {NOTE}")]
    if len(evaluation.kinds) > 1:
        by_kind = [
            [name, str(merge), *percent_by_kind(scores[_cell(name, merge)])] for name in methods for merge in MERGES
        ]
        kinds = ["tokens", "merge", *evaluation.kinds]
        tables.append(ResultTable(f"{title}, by kind of question", kinds, by_kind, KINDS_NOTE))
    return StudyResult(title, tables, {"tower": _figure(list(methods), scores)}, {"scores": scores})


def _cell(name: str, merge: float) -> str:
    """The cell with the answers of a method on features of that tower."""
    return f"{name}, merge {merge}"


def _row(name: str, merge: float, scores: Mapping[str, Any]) -> list[str]:
    score = scores[_cell(name, merge)]
    compared = [str(score["lost"]), str(score["won"]), format_p(score["p"])] if merge else [""] * 3
    right = percent_with_interval(score["accuracy"], score["interval"])
    return [name, str(merge), percent(score["operations"]), right, *compared]


def _figure(names: list[str], scores: Mapping[str, Any]) -> Any:
    rows = {}
    for merge in MERGES:
        share = percent(scores[_cell(ALL_TOKENS, merge)]["operations"])
        rows[f"merge {merge}: {share} %"] = {name: percent_interval(scores[_cell(name, merge)]) for name in names}
    across = {name: 100 * scores[_cell(name, 0.0)]["accuracy"] for name in names}
    note = "%: of the operations in the tower's layers. Dashed: without merging. Bars are 95 % intervals"
    return plot_rows(rows, x="right answers, %", title="Patches merged inside the tower", note=note, across=across)

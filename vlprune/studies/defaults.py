"""ScriptPlus's settings, one changed at a time: which of them answer best?"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from vlprune.evaluation.accuracy import (
    INTERVALS_NOTE,
    outcomes,
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
from vlprune.methods import Method, ScriptPlus
from vlprune.studies.rejected import ByBatch, ByQuarter, QuarterUnasked, TokenGraphWeight, Unfocused

NEEDS, QUESTIONS, KEEP = "answers", (600, 5), (64, 16)
NOTE = (
    "The first row is ScriptPlus as it is by default; each other row changes what it says. Lost, won: questions that "
    "only the default answers, and that only this setting answers; p is McNemar's, exact and two-sided, not corrected "
    "for the number of rows. Where the graph strikes tokens out (supplement, filter), it takes no weight from them. "
    "A quarter without the question: the greedy on plain cosines chooses the last quarter of the budget. For every "
    "question: power and graph count also where it asks about something large."
)
KINDS_NOTE = "Right answers in %."


def script_settings(keep: Any, has_dual_encoder: bool) -> dict[str, tuple[Method, str | None]]:
    """The method and the positions of each setting, by name; some settings need a dual encoder."""
    usual = ScriptPlus(keep=keep)
    unweighted = replace(usual, graph_weight=0.0)
    found: dict[str, Method] = {
        "default": usual,
        **{f"power {power}": replace(usual, power=power) for power in (1.0, 1.25, 4.0)},
        **{f"graph weight {weight}": replace(usual, graph_weight=weight) for weight in (0.0, 0.5)},
        "graph of single tokens": TokenGraphWeight(keep=keep),
        "for every question": Unfocused(keep=keep),
        "for every question, power 1.25": Unfocused(keep=keep, power=1.25),
        **{f"tau {tau}": replace(usual, tau=tau) for tau in (0.5, "otsu")},
        "fusion supplement (the paper's text)": replace(unweighted, fusion="supplement"),
        **{f"fusion filter, rho {rho}": replace(unweighted, fusion="filter", rho=rho) for rho in (0.5, 0.7, 0.9)},
        "a quarter without the question": QuarterUnasked(keep=keep),
        "kernel s": replace(usual, kernel="s"),
        "min-max over the batch": ByBatch(keep=keep),
        "a quarter of the budget per quarter": ByQuarter(keep=keep),
        "relevance from the LLM, sign +1": replace(usual, relevance="llm", sign=1),
        "relevance from the LLM, sign -1": replace(usual, relevance="llm", sign=-1),
    }
    if has_dual_encoder:
        found |= {f"relevance from CLIP, sign {s:+d}": replace(usual, relevance="clip", sign=s) for s in (1, -1)}
    settings: dict[str, tuple[Method, str | None]] = {name: (method, None) for name, method in found.items()}
    return settings | {"positions original": (usual, "original")}


def study(evaluation: Evaluation) -> StudyResult:
    """The default and every other setting, on the same questions."""
    tables = []
    data: dict[str, Any] = {}
    for keep in evaluation.keep:
        lines = _ask(evaluation, keep)
        scores = _compare_with_default(evaluation, lines)
        title = f"Settings of ScriptPlus, keeping {keep}"
        rows = [_row(name, one) for name, one in scores.items()]
        tables.append(ResultTable(title, ["setting", "right", "lost", "won", "p"], rows, f"{INTERVALS_NOTE} {NOTE}"))
        if len(evaluation.kinds) > 1:
            by_kind = [[name, *percent_by_kind(one)] for name, one in scores.items()]
            tables.append(
                ResultTable(f"{title}, by kind of question", ["setting", *evaluation.kinds], by_kind, KINDS_NOTE)
            )
        data |= {f"{name}@{keep}": one for name, one in scores.items()}
    return StudyResult("Defaults", tables, {"defaults": _figure(data, evaluation)}, {"scores": data})


def _ask(evaluation: Evaluation, keep: int | float) -> dict[str, list[AnswerLine]]:
    """The answers with all tokens and with each setting, by the setting's name."""
    settings = script_settings(keep, evaluation.loaded.clip is not None)
    cells = {ALL_TOKENS: keep_all_tokens()}
    cells |= {f"{name}@{keep}": method for name, (method, positions) in settings.items() if positions is None}
    lines = evaluation.ask(cells)
    for name, (method, positions) in settings.items():
        if positions is not None:
            lines |= evaluation.ask({f"{name}@{keep}": method}, positions=positions)
    return {ALL_TOKENS: lines[ALL_TOKENS], **{name: lines[f"{name}@{keep}"] for name in settings}}


def _compare_with_default(evaluation: Evaluation, lines: Mapping[str, list[AnswerLine]]) -> dict[str, dict[str, Any]]:
    """The score of each setting, with the questions lost and won against the default and McNemar's p."""
    scores = {}
    for name, found in lines.items():
        if name != ALL_TOKENS:
            lost, won, p = mcnemar(outcomes(lines["default"]), outcomes(found))
            scores[name] = score_answers(evaluation, found, lines[ALL_TOKENS]) | {"lost": lost, "won": won, "p": p}
    return scores


def _row(name: str, score: Mapping[str, Any]) -> list[str]:
    compared = [str(score["lost"]), str(score["won"]), format_p(score["p"])] if name != "default" else [""] * 3
    return [name, percent_with_interval(score["accuracy"], score["interval"]), *compared]


def _figure(data: Mapping[str, Any], evaluation: Evaluation) -> Any:
    names = dict.fromkeys(cell.rpartition("@")[0] for cell in data)
    rows = {
        name: {f"keep {keep}": percent_interval(data[f"{name}@{keep}"]) for keep in evaluation.keep} for name in names
    }
    across = {f"keep {keep}": 100 * data[f"default@{keep}"]["accuracy"] for keep in evaluation.keep}
    note = "Dashed: the default. Bars are 95 % intervals"
    title = "ScriptPlus with one setting changed at a time"
    return plot_rows(rows, x="right answers, %", title=title, note=note, across=across)

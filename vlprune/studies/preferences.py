"""What families of methods would keep: by attention, by similarity, by divergence, and Script with its parts.

The paper's four families are attention-, similarity- and divergence-based methods, and Script. Beside them stand two
parts of Script: relevance to the question alone, and QCSP, which is relevance and the DPP without the graph.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from vlprune.errors import UserError
from vlprune.evaluation.accuracy import percent
from vlprune.evaluation.answers import AnswerLine, Evaluation
from vlprune.evaluation.plots import plot_panels
from vlprune.evaluation.questions import ImageQuestion
from vlprune.evaluation.reference_methods import evidence_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import spearman
from vlprune.methods import AttentionTopK, CDPruner, DivPrune, GraphOnly, Method, RelevanceTopK, Script
from vlprune.record import Record

NEEDS, QUESTIONS, KEEP = "answers", (50, 16), (64,)
PICTURES = 4
#: What a family goes by, for the titles of its maps.
GOES_BY = {
    "attention": "attention in the vision tower",
    "relevance": "relevance to the question",
    "redundancy": "little redundancy (similarity)",
    "divergence": "DivPrune, earliest choices first",
    "qcsp": "QCSP alone, earliest choices first",
    "script": "Script, earliest choices first",
}


def study(evaluation: Evaluation) -> StudyResult:
    """Maps of what each prefers, how far they agree, and how much of what they keep lies on what was asked about."""
    keep = evaluation.keep[0]
    by_score: dict[str, Method] = {
        "attention": AttentionTopK(keep=keep),
        "relevance": RelevanceTopK(keep=keep),
        "redundancy": GraphOnly(keep=keep),
    }
    by_order: dict[str, Method] = {
        "divergence": DivPrune(keep=keep),
        "qcsp": CDPruner(keep=keep),
        "script": Script(keep=keep),
    }
    # some towers do not show their attention
    lines = evaluation.ask(by_score, details=map_by_score, skip_unsupported=True)
    lines |= evaluation.ask(by_order, details=map_by_order, skip_unsupported=True)
    if len(lines) < 2:
        raise UserError(next(f"{name}: {reason}" for name, reason in evaluation.run_folder.refused.items()))
    agree = {
        f"{a} and {b}": float(np.mean([spearman(x["map"], y["map"]) for x, y in zip(lines[a], lines[b])]))
        for a, b in combinations(lines, 2)
    }
    rows = [[pair, f"{value:+.2f}"] for pair, value in agree.items()]
    note = f"Mean over {len(evaluation.questions)} questions."
    tables = [ResultTable("Do they agree?", ["families", "Spearman's ρ"], rows, note)]
    data: dict[str, Any] = {"agreement": agree}
    if evaluation.has_scenes:
        data["on_target"] = {name: _on_target(evaluation, found) for name, found in lines.items()}
        tables.append(_on_target_table(keep, data["on_target"]))
    return StudyResult("Preferences", tables, {"preferences": _figure(evaluation, lines)}, data)


def _on_target_table(keep: int | float, shares: Mapping[str, tuple[float, float, float]]) -> ResultTable:
    rows = [[name, percent(on), percent(every)] for name, (on, every, _) in shares.items()]
    chance = next(iter(shares.values()))[2]
    note = (
        f"Of {keep} tokens, the share in % whose middle lies on what was asked about ({percent(chance)} of the "
        "image), and how often every thing asked about keeps a token. Questions about nothing that is there are "
        "left out."
    )
    return ResultTable("On what was asked about?", ["family", "% of the kept", "% seen whole"], rows, note)


def map_by_score(question: ImageQuestion, record: Record) -> dict[str, Any]:
    """How much the method prefers each token: its score."""
    scores = next(iter(record.scores.values()))
    return _as_map(record, (-scores if record.redundancy is not None else scores).tolist())


def map_by_order(question: ImageQuestion, record: Record) -> dict[str, Any]:
    """How much a method prefers each token: higher the earlier it is chosen, and 0 if it is not kept."""
    assert record.order is not None
    rank = {token: i for i, token in enumerate(record.choices)}
    kept = set(record.kept.tolist())
    return _as_map(record, [float(len(record.order) - rank[i]) if i in kept else 0.0 for i in range(record.before)])


def _as_map(record: Record, values: list[float]) -> dict[str, Any]:
    return {"map": [round(value, 6) for value in values], "kept": record.kept.tolist(), "grid": list(record.grid)}


def _on_target(evaluation: Evaluation, lines: Sequence[AnswerLine]) -> tuple[float, float, float]:
    """Mean shares: of kept tokens on what was asked about, of questions that see all of it, of the image it covers."""
    shares, whole, areas = [], [], []
    for question, line in zip(evaluation.questions, lines):
        things = [set(part.tolist()) for part in evidence_tokens(question, line["grid"][0])]
        if things:
            kept, asked = set(line["kept"]), set().union(*things)
            shares.append(len(kept & asked) / len(kept))
            whole.append(all(kept & thing for thing in things))
            areas.append(len(asked) / len(line["map"]))
    return float(np.mean(shares)), float(np.mean(whole)), float(np.mean(areas))


def _figure(evaluation: Evaluation, lines: Mapping[str, Sequence[AnswerLine]]) -> Any:
    """Rows of a question each: the image, and every family's map by rank."""
    by_kind = {
        kind: [i for i, question in enumerate(evaluation.questions) if question.kind == kind]
        for kind in evaluation.kinds
    }
    shown = [own[number % len(own)] for number, own in enumerate(by_kind.values())]  # another image for every kind
    shown = [*shown, *(i for i in range(len(evaluation.questions)) if i not in shown)][:PICTURES]
    rows = []
    for i in shown:
        question = evaluation.questions[i]
        maps = []
        for name, found in lines.items():
            values = np.array(found[i]["map"])
            ranks = np.unique(values, return_inverse=True)[1]
            maps.append((GOES_BY[name], ranks.reshape(found[i]["grid"])))
        rows.append([(question.text, np.asarray(question.image())), *maps])
    title = "Which tokens each family of methods prefers"
    return plot_panels(rows, title=title, low="least preferred, or dropped", high="most preferred")

"""How far relevance may be trusted on this model: measured from the maps alone, then checked by answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch

from vlprune.evaluation.accuracy import outcomes, percent_with_interval
from vlprune.evaluation.answers import AnswerLine, Evaluation
from vlprune.evaluation.plots import plot_rows
from vlprune.evaluation.questions import ImageQuestion
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import bootstrap_interval, bootstrap_means, format_p, mcnemar, wilson_interval
from vlprune.methods import Method, ScriptPlus
from vlprune.methods.base import QueryMethod
from vlprune.record import Record
from vlprune.selection import evidence_trust, relevance_evidence
from vlprune.selection.trust import FULL, NONE
from vlprune.types import Query, Selection, TokenView

NEEDS, QUESTIONS, KEEP = "answers", (100, 5), (64, 16)
UNASKED = "none, not at all"  # the row without the question
NOTE = (
    "Evidence is above 0 if a map's upper end is the small side of the image, as what is asked about is; brackets: "
    "95 % intervals by a bootstrap over images, deviation: from one question's map to another's, and a turned sign has "
    f"the same with a minus. Trust follows from the mean over all questions: 0 up to {NONE}, 1 from {FULL} on. One map "
    f"strays from that mean by about the deviation; where that is more than the {FULL - NONE:.1f} between the bounds, "
    "trust=image, which goes by each image's own map, is less sure."
)
ANSWERS_NOTE = (
    "Right answers in % with Wilson's 95 % intervals; fully: with trust 1, not at all: without the question. Lost, "
    "won: questions that only the better of these two answers, and that only trusted relevance answers; p is "
    "McNemar's, exact and two-sided, not corrected, and not for choosing the better by the same answers. With trust 0 "
    "or 1 trusted relevance is one of the two, and is not asked again."
)


@dataclass(frozen=True)
class EvidenceProbe(QueryMethod):
    """Keeps each image's first token, and gives the evidence of its relevance map as every token's score."""

    name: ClassVar[str] = "evidence_probe"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        evidence = relevance_evidence(self.relevance_scores(view, query), view.features, grid=view.grid)
        kept = torch.zeros(len(evidence), 1, dtype=torch.int64, device=evidence.device)
        return Selection(kept=kept, scores=evidence[:, None].repeat(1, view.n))


def study(evaluation: Evaluation) -> StudyResult:
    """Evidence and trust of each source of relevance with both signs, and the answers with and without it."""
    found = _measure_trust(evaluation)
    images = len({question.image_name for question in evaluation.questions})
    title = f"Trust, from {len(evaluation.questions):,} questions about {images:,} images"
    rows = [_row(name, one) for name, one in found.items()]
    tables = [ResultTable(title, ["source", "evidence", "deviation", "trust", "setting"], rows, NOTE)]
    data: dict[str, Any] = {"trust": found, "scores": {}}
    answered = [question for question in evaluation.questions if question.answers]
    for keep in evaluation.keep if answered else ():
        scores = _compare_answers(evaluation, answered, found, keep)
        data["scores"][str(keep)] = scores
        rows = [_answers_row(name, one) for name, one in scores.items()]
        columns = ["source", "counts", "right", "lost", "won", "p"]
        tables.append(ResultTable(f"Answers of script_plus, keeping {keep}", columns, rows, ANSWERS_NOTE))
    return StudyResult("Trust in relevance", tables, {"trust": _figure(found)}, data)


def _measure_trust(evaluation: Evaluation) -> dict[str, dict[str, Any]]:
    """Evidence, trust and setting by source and sign, as in "clip +1"; maps are made once for both signs."""
    sources = ["clip"] * (evaluation.loaded.clip is not None) + ["llm"]
    probes = {f"evidence {source}": EvidenceProbe(keep=1, relevance=source, sign=1) for source in sources}
    lines = replace(evaluation, max_new_tokens=1).ask(probes, details=_evidence)
    images = [question.image_name for question in evaluation.questions]
    found = {}
    for source in sources:
        evidence = [line["evidence"] for line in lines[f"evidence {source}"]]
        for sign in (1, -1):
            one = summarize([sign * value for value in evidence], images)
            setting = f"script_plus:relevance={source},sign={sign},trust={one['trust']:.2f}"
            found[f"{source} {sign:+d}"] = {"source": source, "sign": sign, **one, "setting": setting}
    return found


def _evidence(question: ImageQuestion, record: Record) -> dict[str, Any]:
    assert record.ranking is not None
    return {"evidence": round(float(record.ranking.double().mean()), 6)}


def summarize(evidence: Sequence[float], images: Sequence[str]) -> dict[str, Any]:
    """The mean of some maps' evidence with its interval, their deviation, and the trust, with two decimals.

    The interval is None where the bootstrap over images has no spread, as with one image.

    >>> summarize([0.1, 0.3], ["a", "a"])
    {'mean': 0.2, 'interval': None, 'deviation': 0.1414213562373095, 'trust': 0.5}
    """
    mean, means = float(np.mean(evidence)), bootstrap_means([evidence], images)[:, 0]
    known = np.ptp(means) > 1e-6
    return {
        "mean": mean,
        "interval": list(bootstrap_interval(means, images, (-np.inf, np.inf))) if known else None,
        "deviation": float(np.std(evidence, ddof=1)) if len(evidence) > 1 else None,
        "trust": round(float(evidence_trust(torch.tensor(mean))), 2),
    }


def _compare_answers(
    evaluation: Evaluation, questions: Sequence[ImageQuestion], found: Mapping[str, Any], keep: int | float
) -> dict[str, dict[str, Any]]:
    """The scores of `UNASKED`, and of "clip +1, fully" and "clip +1, trusted" for each source and sign."""
    cells: dict[str, Method] = {UNASKED: ScriptPlus(keep=keep, relevance="none")}
    asked = {UNASKED: UNASKED}  # the cell that has the answers of each row
    for name, one in found.items():
        full = ScriptPlus(keep=keep, relevance=one["source"], sign=one["sign"])
        cells[f"{name}, fully"] = full
        asked[f"{name}, fully"] = f"{name}, fully"
        asked[f"{name}, trusted"] = {0.0: UNASKED, 1.0: f"{name}, fully"}.get(one["trust"], f"{name}, trusted")
        cells.setdefault(asked[f"{name}, trusted"], replace(full, trust=one["trust"]))
    lines = evaluation.ask({f"{cell}@{keep}": method for cell, method in cells.items()}, questions=questions)
    right = {row: outcomes(lines[f"{cell}@{keep}"]) for row, cell in asked.items()}
    scores = {row: _score(lines[f"{cell}@{keep}"]) for row, cell in asked.items()}
    for name in found:
        better = max((f"{name}, fully", UNASKED), key=lambda row: sum(right[row]))
        compared = mcnemar(right[better], right[f"{name}, trusted"])
        scores[f"{name}, trusted"] |= {"against": better, **dict(zip(("lost", "won", "p"), compared))}
    return scores


def _score(lines: Sequence[AnswerLine]) -> dict[str, Any]:
    right, asked = sum(outcomes(lines)), len(lines)
    return {"right": right, "asked": asked, "accuracy": right / asked, "interval": list(wilson_interval(right, asked))}


def _row(name: str, one: Mapping[str, Any]) -> list[str]:
    ends = "" if one["interval"] is None else " [{:+.3f}, {:+.3f}]".format(*one["interval"])
    deviation = "-" if one["deviation"] is None else f"{one['deviation']:.3f}"
    return [name, f"{one['mean']:+.3f}{ends}", deviation, f"{one['trust']:.2f}", one["setting"]]


def _answers_row(name: str, one: Mapping[str, Any]) -> list[str]:
    compared = [str(one["lost"]), str(one["won"]), format_p(one["p"])] if "p" in one else [""] * 3
    return [*name.split(", "), percent_with_interval(one["accuracy"], one["interval"]), *compared]


def _figure(found: Mapping[str, Any]) -> Any:
    rows = {
        name: {"mean over questions": (one["mean"], *(one["interval"] or [one["mean"]] * 2))}
        for name, one in found.items()
    }
    across = {f"no trust up to {NONE}": NONE, f"full trust from {FULL}": FULL}
    title, note = "What speaks for relevance maps, by source and sign", "Bars are 95 % intervals"
    return plot_rows(rows, x="evidence", title=title, note=note, across=across, percentages=False)

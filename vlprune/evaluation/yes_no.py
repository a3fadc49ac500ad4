"""Yes/no questions: beside the share of right answers, how well "yes" is told from "no" at any threshold.

Pruning shifts how often a model says "yes". A model that says "no" to everything is right half of the time, whether it
sees nothing or only leans too far: the area under the ROC curve (AUC) of its margins tells these apart.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from vlprune.evaluation.questions import ImageQuestion, normalize_answer
from vlprune.evaluation.result import ResultTable
from vlprune.evaluation.stats import wilson_interval

if TYPE_CHECKING:
    from torch import Tensor

YES_NO_NOTE = (
    "Right answers in %, with Wilson's 95 % interval. Says yes: in % of the questions. AUC: the chance, in %, that the "
    'first answer token leans more to "yes" in a question whose answer is yes than in one whose answer is no; 50 is '
    "chance. It does not change when a method shifts all answers to one side."
)


def says_yes_or_no(question: ImageQuestion) -> bool:
    """Whether the right answer is yes or no."""
    return {normalize_answer(answer) for answer in question.answers} in ({"yes"}, {"no"})


def yes_no_tokens(processor: Any) -> tuple[list[int], list[int]]:
    """The ids that an answer of "yes", and of "no", may begin with: in lower case, or with a capital."""
    tokenizer = getattr(processor, "tokenizer", processor)
    found: list[set[int]] = []
    for word in ("yes", "no"):
        spelled = (tokenizer(one, add_special_tokens=False).input_ids for one in (word, word.capitalize()))
        found.append({ids[0] for ids in spelled if ids} - {tokenizer.unk_token_id})
    yes, no = found
    return sorted(yes - no), sorted(no - yes)


def yes_margins(processor: Any, questions: Sequence[ImageQuestion], logits: Tensor | None) -> list[float | None]:
    """By how much the first token (B, V) leans to "yes" over "no"; None for other questions."""
    asks = [says_yes_or_no(question) for question in questions]
    if logits is None or not any(asks):
        return [None] * len(asks)
    yes, no = yes_no_tokens(processor)
    if not yes or not no:
        return [None] * len(asks)
    margins = (logits[:, yes].amax(1) - logits[:, no].amax(1)).tolist()
    return [margin if asked else None for margin, asked in zip(margins, asks)]


def auc(margins: Sequence[float], positive: Sequence[bool]) -> float | None:
    """The area under the ROC curve; ties count half, None where there are only positives or only negatives.

    >>> auc([0.1, 0.9, 0.4, 0.4], [False, True, True, False])
    0.875
    """
    values, told = np.asarray(margins, float), np.asarray(positive, bool)
    count, others = int(told.sum()), int((~told).sum())
    if not count or not others:
        return None
    _, at, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (sizes.cumsum() - (sizes - 1) / 2)[at]
    return float((ranks[told].sum() - count * (count + 1) / 2) / (count * others))


def yes_no_scores(questions: Sequence[ImageQuestion], lines: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """By kind of yes/no question: how many were asked, answered right and answered "yes", and the AUC.

    Where small things are known, they are a group of their own beside the kinds.
    """
    groups: dict[str, list[tuple[ImageQuestion, Mapping[str, Any]]]] = {}
    for question, line in zip(questions, lines):
        if says_yes_or_no(question):
            groups.setdefault(question.kind, []).append((question, line))
            if getattr(question, "small", False) and not getattr(question, "place", ()):
                groups.setdefault("small things", []).append((question, line))
    return {kind: _score(found) for kind, found in groups.items()}


def _score(found: Sequence[tuple[ImageQuestion, Mapping[str, Any]]]) -> dict[str, Any]:
    """The scores of one group of questions."""
    margins = [line["yes"] for _, line in found if "yes" in line]
    truth = [normalize_answer(question.answers[0]) == "yes" for question, _ in found]
    return {
        "asked": len(found),
        "right": sum(bool(line["right"]) for _, line in found),
        "says_yes": sum(normalize_answer(line["answer"]).startswith("yes") for _, line in found),
        "auc": auc(margins, truth) if len(margins) == len(found) else None,
    }


def yes_no_table(rows: Sequence[tuple[str, str, Mapping[str, Mapping[str, Any]]]]) -> ResultTable:
    """The scores of each (method, keep), a row for each kind."""
    cells = []
    for method, keep, scores in rows:
        for kind, one in scores.items():
            low, high = (100 * end for end in wilson_interval(one["right"], one["asked"]))
            right = f"{100 * one['right'] / one['asked']:.1f} [{low:.1f}, {high:.1f}]"
            area = "-" if one["auc"] is None else f"{100 * one['auc']:.1f}"
            cells.append([method, keep, kind, right, area, f"{100 * one['says_yes'] / one['asked']:.1f}"])
    return ResultTable("Yes or no", ["method", "keep", "kind", "right", "AUC", "says yes"], cells, YES_NO_NOTE)

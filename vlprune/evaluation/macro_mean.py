"""The mean over kinds of questions, each counting the same: how the paper averages its benchmarks."""

from __future__ import annotations

from collections.abc import Sequence

from vlprune.evaluation.questions import ImageQuestion

MME = "mme"  # the kind of MME's questions; "mme/count" and the like are its subtasks


def macro_mean(questions: Sequence[ImageQuestion], right: Sequence[bool]) -> float:
    """The mean of `kind_scores`, from 0 to 1.

    >>> from vlprune.evaluation.questions import pocket_questions
    >>> macro_mean(pocket_questions("test", 1), [True, True, True, False, False, False])
    0.5
    """
    scores = kind_scores(questions, right)
    return sum(scores.values()) / len(scores)


def kind_scores(questions: Sequence[ImageQuestion], right: Sequence[bool]) -> dict[str, float]:
    """The score of each kind from 0 to 1: the share of right answers, and for MME its own score.

    MME adds, for each of its subtasks, the share of right answers and the share of images of which all questions are
    answered right, in percent; its ten subtasks make 2,000 points at most, which the paper's mean divides by 20. Here
    it is divided by twice the number of subtasks that were asked, which for ten is the same.
    """
    outcomes: dict[str, list[tuple[str, bool]]] = {}
    for question, answer in zip(questions, right):
        outcomes.setdefault(question.kind, []).append((question.image_name, bool(answer)))
    shares = {kind: sum(answer for _, answer in found) / len(found) for kind, found in outcomes.items()}
    subtasks = [kind for kind in outcomes if kind.lower().partition("/")[0] == MME]
    if not subtasks:
        return shares
    points = sum(100 * shares.pop(kind) + 100 * _whole_images(outcomes[kind]) for kind in subtasks)
    return shares | {MME: points / (2 * len(subtasks)) / 100}


def _whole_images(outcomes: Sequence[tuple[str, bool]]) -> float:
    """The share of images of which every question is answered right."""
    whole: dict[str, bool] = {}
    for image, answer in outcomes:
        whole[image] = whole.get(image, True) and answer
    return sum(whole.values()) / len(whole)

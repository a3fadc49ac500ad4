"""The official scores of known benchmarks, over all answers of a method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vlprune.evaluation.benchmark_scores import read_yes_no
from vlprune.evaluation.macro_mean import MME
from vlprune.evaluation.questions import ImageQuestion
from vlprune.evaluation.result import ResultTable

#: What each benchmark's score is called.
TITLES = {
    "pope": "POPE accuracy",
    "gqa": "GQA accuracy",
    "textvqa": "TextVQA accuracy",
    "vqav2": "VQAv2 accuracy",
    "vizwiz": "VizWiz accuracy",
    "scienceqa": "ScienceQA accuracy",
    "chartqa": "ChartQA relaxed accuracy",
}
NOTE = (
    "As the benchmarks' makers score: VQAv2, TextVQA and VizWiz by how many of ten people said so, ChartQA with "
    "numbers that may be off by 5 %, MME in points, 200 for each subtask: right answers, and images whose two "
    "questions are both answered right. In the other tables an answer is right if its score is at least one half."
)


def official_scores(questions: Sequence[ImageQuestion], lines: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Scores by their titles; `lines` are the answers to the questions, in their order."""
    found: dict[str, list[tuple[ImageQuestion, Mapping[str, Any]]]] = {}
    for question, line in zip(questions, lines):
        if question.rule and question.answers:
            found.setdefault(question.kind.partition("/")[0], []).append((question, line))
    scores: dict[str, float] = {}
    for kind, rows in found.items():
        if kind == MME:
            scores["MME points"] = _mme_points(rows)
            continue
        scores[TITLES.get(kind, kind)] = 100 * sum(line["score"] for _, line in rows) / len(rows)
        if kind == "pope":
            scores["POPE F1"] = _f1(rows)
    return scores


def _f1(rows: Sequence[tuple[ImageQuestion, Mapping[str, Any]]]) -> float:
    """F1 of "yes", in percent."""
    said = [read_yes_no(line["answer"]) == "yes" for _, line in rows]
    true = [question.answers[0] == "yes" for question, _ in rows]
    both = sum(a and b for a, b in zip(said, true))
    return 100 * 2 * both / max(1, sum(said) + sum(true))


def _mme_points(rows: Sequence[tuple[ImageQuestion, Mapping[str, Any]]]) -> float:
    """The sum over subtasks of the share of right answers and of images with all answers right, in percent."""
    subtasks: dict[str, dict[str, list[float]]] = {}
    for question, line in rows:
        subtasks.setdefault(question.kind, {}).setdefault(question.image_name, []).append(line["score"])
    points = 0.0
    for images in subtasks.values():
        answers = [score for scores in images.values() for score in scores]
        whole = sum(all(scores) for scores in images.values()) / len(images)
        points += 100 * sum(answers) / len(answers) + 100 * whole
    return points


def official_table(
    questions: Sequence[ImageQuestion], cells: Sequence[tuple[str, str, Sequence[Mapping[str, Any]]]]
) -> ResultTable:
    """The scores of each method at each budget: `cells` are (method, keep, answers)."""
    found = [official_scores(questions, lines) for _, _, lines in cells]
    titles = list(found[0])
    rows = [[method, keep, *(f"{one[title]:.1f}" for title in titles)] for (method, keep, _), one in zip(cells, found)]
    return ResultTable("Official scores", ["method", "keep", *titles], rows, NOTE)

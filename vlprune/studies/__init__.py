"""The paper's tables and figures, one module each: `vlprune study NAME`.

A study is a module of this package that is a `Study`. It asks the questions of an `Evaluation` by the methods that it
compares, and returns tables, figures and the numbers behind them. What studies share is in `vlprune.evaluation`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:  # these import torch, which the list of studies does without
    from vlprune.evaluation.answers import Evaluation
    from vlprune.evaluation.result import StudyResult

#: Each study by its name, which is that of its module, and what it is about.
STUDIES = {
    "coverage": "what is kept of photographs: things, stuff, and what stands for the rest; no LLM is asked",
    "graph": "exhaustive, bipartite and random graphs: time, agreement of the kept sets, accuracy",
    "redundancy": "similarity against distance, and local entropy",
    "ablation": "GSP, QCRS and DPP on and off",
    "sensitivity": "tau, gamma and the kernel",
    "overlap": "what GSP and QCSP both keep, against the budget",
    "significance": "20 seeds: t-test, Wilcoxon, McNemar, bootstrap",
    "thresholds": "what counts as redundant, from tau 0.1 to 0.9",
    "envelope": "how wide sets of tokens are, against how alike, and the bound of the theory",
    "preferences": "what families of methods and parts of Script would keep, as maps",
    "errors": "who lost the evidence: GSP, QCSP, or the model",
    "defaults": "Script's settings, one changed at a time",
    "adaptive": "budgets that follow the image, against fixed ones of the same mean",
    "trust": "how far relevance helps on this model, from its maps alone, and the answers with and without it",
    "tower": "patches merged inside the vision tower: what it saves of the tower, and what it costs in answers",
}


class Study(Protocol):
    """What the module of a study has."""

    NEEDS: str
    """What it cannot do without: "images", questions with "answers", "scenes" of the pocket world, "boxes" around what
    is asked about (which scenes have too), or "photographs"."""
    QUESTIONS: tuple[int, int]
    """Questions of each kind that it asks by default: in full, and in small."""
    KEEP: tuple[int | float, ...]
    """The budgets that it uses by default; empty if it prunes nothing."""

    def study(self, evaluation: Evaluation) -> StudyResult:
        """Ask what the study asks, with the budgets `evaluation.keep`, and return what it finds."""


def run_study(name: str, evaluation: Evaluation) -> StudyResult:
    """What the study of that name finds, and the table that sets it beside the paper's numbers."""
    from vlprune.studies.beside_paper import beside_paper, describe_run

    result = get_study(name).study(evaluation)
    result.tables += beside_paper(name, result.data, describe_run(evaluation))
    return result


def images_notice(count: int) -> str:
    """The line that marks the result of a small run over images.

    >>> images_notice(8)
    'A small run: 8 images; for a look, not for a claim.'
    """
    return f"A small run: {count} images; for a look, not for a claim."


def small_notice(study: Study, evaluation: Evaluation) -> str:
    """The line that marks the result of a small run."""
    count = len(evaluation.questions)
    if study.NEEDS == "images":
        return images_notice(len({question.image_name for question in evaluation.questions}))
    if evaluation.has_scenes:
        seeds = getattr(study, "SEEDS", (1, 1))[1]  # each draws as many
        asked = f"{seeds * count // len(evaluation.kinds)} questions of each kind"
    else:
        asked = f"{count} questions"
    return f"A small run: {asked}; for a look, not for a claim."


def get_study(name: str) -> Study:
    """The module of that study.

    >>> get_study("overlap").NEEDS
    'answers'
    """
    if name not in STUDIES:
        raise ValueError(f"name={name!r}: no such study; choose from {', '.join(STUDIES)}.")
    return cast(Study, import_module(f"vlprune.studies.{name}"))

"""Whether Script is better than other methods, or lucky."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean, stdev
from typing import Any

from vlprune.errors import UserError
from vlprune.evaluation.accuracy import outcomes, percent
from vlprune.evaluation.answers import AnswerLine, Evaluation, share_right
from vlprune.evaluation.plots import plot_rows
from vlprune.evaluation.questions import ImageQuestion, pocket_questions
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import (
    bootstrap_interval,
    bootstrap_means,
    format_p,
    import_scipy_stats,
    mcnemar,
    paired_tests,
)
from vlprune.methods import Method, get_method, list_methods

NEEDS, QUESTIONS, KEEP = "answers", (20, 10), (32,)
SEEDS = (20, 4)  # in full, and in small
FIRST_SEED = 1000  # seeds of scenes that no split uses
TAKES_METHODS = True  # --methods says what Script is compared with
SMALL_METHODS = ("script", "random", "dpp_only")
NOTE = (
    "p (t), p (Wilcoxon): paired, one-sided, that Script is better, over the seeds' accuracies; t has none where all "
    "seeds differ by the same. Only Script, only it: questions that one answers and the other does not; McNemar's "
    "exact two-sided p. Difference: Script's right answers less the other's, in points, with a 95 % interval by "
    "bootstrap over images. No p is corrected for the number of methods."
)


def study(evaluation: Evaluation) -> StudyResult:
    """Script against every other method on several sets of questions, by four tests.

    Most methods draw nothing at random, so a seed draws scenes and questions (and the random method's tokens). A file
    of questions is dealt out into as many parts instead.
    """
    import_scipy_stats()  # say that it is missing before anything is asked
    folds = _folds(evaluation)
    questions = [question for fold in folds for question in fold]
    tables, data = [], {}
    for keep in evaluation.keep:
        cells = {f"{name}@{keep}": method for name, method in _methods(evaluation, keep).items()}
        lines = evaluation.ask(cells, questions=questions, skip_unsupported=True)
        found = {cell.rpartition("@")[0]: answered for cell, answered in lines.items()}
        if "script" not in found:
            raise UserError(f"script cannot run here: {evaluation.run_folder.refused[f'script@{keep}']}")
        data[str(keep)] = {name: _compare(found["script"], found[name], folds, questions) for name in found}
        rows = [_row(name, one) for name, one in sorted(data[str(keep)].items(), key=lambda pair: -pair[1]["mean"])]
        columns = ["method", "mean", "std", "p (t)", "p (Wilcoxon)", "only Script", "only it", "McNemar", "difference"]
        title = f"Script against others, keeping {keep}: {len(folds)} seeds, {len(questions):,} questions"
        tables.append(ResultTable(title, columns, rows, NOTE))
    return StudyResult("Significance", tables, {"significance": _figure(data)}, data)


def _methods(evaluation: Evaluation, keep: int | float) -> dict[str, Method]:
    """Script and what it is compared with, by name: the evaluation's methods, or else all of them, in small a few."""
    if not evaluation.methods:
        return {name: get_method(name, keep=keep) for name in (SMALL_METHODS if evaluation.small else list_methods())}
    asked = {name: by_keep.get(str(keep), next(iter(by_keep.values()))) for name, by_keep in evaluation.methods.items()}
    return {"script": get_method("script", keep=keep), **asked}


def _folds(evaluation: Evaluation) -> list[list[ImageQuestion]]:
    """The questions of each seed: drawn by it, or a part of those of a file."""
    seeds = SEEDS[evaluation.small]
    if evaluation.has_scenes:
        per_kind = sum(question.kind == evaluation.kinds[0] for question in evaluation.questions)
        first = FIRST_SEED + evaluation.seed * seeds
        return [pocket_questions(first + i, per_kind, start=100_000 * i) for i in range(seeds)]
    if len(evaluation.questions) < 2 * seeds:
        raise UserError(f"--data has {len(evaluation.questions)} questions: {seeds} parts need {2 * seeds} at least.")
    return [evaluation.questions[i::seeds] for i in range(seeds)]


def _compare(
    script: Sequence[AnswerLine],
    other: Sequence[AnswerLine],
    folds: Sequence[Sequence[ImageQuestion]],
    questions: Sequence[ImageQuestion],
) -> dict[str, Any]:
    """A method's accuracy by seed, and the tests of Script against it."""
    ends = [0]
    for fold in folds:
        ends.append(ends[-1] + len(fold))
    mine, its = ([share_right(lines[a:b]) for a, b in pairwise(ends)] for lines in (script, other))
    t, wilcoxon = paired_tests(mine, its)
    right = [outcomes(lines) for lines in (script, other)]
    only, only_other, p = mcnemar(*right)
    images = [question.image_name for question in questions]
    means = bootstrap_means(right, images)
    return {
        "seeds": its,
        "mean": mean(its),
        "std": stdev(its),
        "t": t,
        "wilcoxon": wilcoxon,
        "mcnemar": {"only_script": only, "only_other": only_other, "p": p},
        "difference": share_right(script) - share_right(other),
        "difference_interval": list(bootstrap_interval(means[:, 0] - means[:, 1], images, (-1, 1))),
    }


def _row(name: str, one: Any) -> list[str]:
    cells = [name, percent(one["mean"]), percent(one["std"])]
    if name == "script":
        return [*cells, *[""] * 6]
    pairs = one["mcnemar"]
    low, high = (100 * end for end in one["difference_interval"])
    difference = f"{100 * one['difference']:+.1f} [{low:+.1f}, {high:+.1f}]"
    tests = ["-" if one["t"] is None else format_p(one["t"]), format_p(one["wilcoxon"])]
    return [*cells, *tests, str(pairs["only_script"]), str(pairs["only_other"]), format_p(pairs["p"]), difference]


def _figure(data: Any) -> Any:
    rows: dict[str, dict[str, Any]] = {}
    differences: dict[str, list[float]] = {}
    for keep, found in data.items():
        for name, one in found.items():
            if name != "script":
                ends = (100 * end for end in one["difference_interval"])
                rows.setdefault(name, {})[f"keep {keep}"] = (100 * one["difference"], *ends)
                differences.setdefault(name, []).append(one["difference"])
    ordered = {name: rows[name] for name in sorted(rows, key=lambda name: -mean(differences[name]))}
    x = "Script's right answers less the method's, percentage points"
    note = "Right of the dashed line Script is ahead, left of it the other. Bars are 95 % intervals"
    title = "Script against every other method"
    return plot_rows(ordered, x=x, title=title, note=note, across={"no difference": 0.0}, percentages=False)

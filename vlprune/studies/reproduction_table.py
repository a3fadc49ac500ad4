"""A table of the paper run here, beside what the paper prints."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from vlprune.evaluation.result import ResultTable
from vlprune.studies.paper import ALL_TOKENS
from vlprune.studies.reproduction import Cell, Plan

Z = 1.959964  # of a 95 % interval
#: Which documents of a task a part of it is: the field to look at, and whether its value belongs.
PARTS = {
    "videomme_short": lambda doc: doc["duration"] == "short",
    "videomme_medium": lambda doc: doc["duration"] == "medium",
    "videomme_long": lambda doc: doc["duration"] == "long",
    "longvideobench_perception": lambda doc: "2" in doc["question_category"],  # S2E, T2O and so on
    "longvideobench_relation": lambda doc: "2" not in doc["question_category"],
}
NOTE = (
    "Here, ± half of a 95 % interval over questions, and in brackets the paper's value; ≠ where they differ by more "
    "than that. Mean: over the columns that were run, MME divided by 20 and OCRBench by 10, as in the paper; relative: "
    "to all tokens, whose answers are taken as independent ones, which makes the interval wider than it is. No ± where "
    "single answers have no score, as with a judge, and in means over such columns."
)


class Score(NamedTuple):
    """A score on the paper's scale, and half of its 95 % interval; None where single answers have no score."""

    value: float
    half: float | None


def column_score(plan: Plan, column: str, metrics: Mapping[str, float], samples: Sequence[Mapping[str, Any]]) -> Score:
    """The score of a column, from lmms-eval's metrics and logged samples of its task."""
    benchmark = plan.benchmark(column)
    metric = benchmark.metrics[0]
    if benchmark.part_of is not None or benchmark.by_sample:
        own = [sample for sample in samples if benchmark.by_sample or PARTS[column](sample["doc"])]
        found = [one for one in (sample_score(sample, metric) for sample in own) if one is not None]
        return Score(benchmark.factor * sum(found) / max(1, len(found)), _half(found, benchmark.factor))
    values = [metrics[name] for name in benchmark.metrics]
    value = benchmark.factor * (sum(values) if benchmark.adds_up else sum(values) / len(values))
    if column == "mme":
        return Score(value, _mme_half(samples, benchmark.metrics))
    scores = [sample_score(sample, metric) for sample in samples]
    if metric.endswith("f1_score") or any(one is None for one in scores) or not scores:
        return Score(value, None)
    found = [one for one in scores if one is not None]
    mean = sum(found) / len(found)
    return Score(value, _half(found, value / mean if mean else benchmark.factor))


def sample_score(sample: Mapping[str, Any], metric: str) -> float | None:
    """What one logged sample adds to a metric, from 0 to 1; None if it does not say.

    >>> sample_score({"acc": 1.0}, "acc"), sample_score({"acc": {"score": 0.0}}, "acc"), sample_score({}, "acc")
    (1.0, 0.0, None)
    """
    found = sample.get(metric)
    if isinstance(found, Mapping):
        if "parsed_pred" in found:
            return float(found["parsed_pred"] == found["answer"])
        if "pred_answer" in found and "answer" in found and "score" not in found:
            return float(found["pred_answer"] == found["answer"])
        found = found.get("score")
    return float(found) if isinstance(found, (int, float)) else None


def _half(scores: Sequence[float], factor: float) -> float | None:
    """Half of the 95 % interval of a mean, times `factor`."""
    if len(scores) < 2:
        return None
    mean = sum(scores) / len(scores)
    variance = sum((one - mean) ** 2 for one in scores) / (len(scores) - 1)
    return Z * factor * math.sqrt(variance / len(scores))


def _mme_half(samples: Sequence[Mapping[str, Any]], metrics: Sequence[str]) -> float | None:
    """Half of the interval of MME's points: a sum over categories of a mean over images, which are independent."""
    points: dict[str, dict[str, list[float]]] = {}
    for sample in samples:
        for found in (sample[metric] for metric in metrics if metric in sample):
            points.setdefault(found["category"], {}).setdefault(found["question_id"], []).append(found["score"])
    halves = [
        _half([100 * sum(one) / len(one) + 100 * (sum(one) == len(one)) for one in images.values()], 1)
        for images in points.values()
    ]
    known = [half for half in halves if half is not None]
    return math.sqrt(sum(half**2 for half in known)) if known and len(known) == len(halves) else None


def mean_score(plan: Plan, scores: Mapping[str, Score]) -> Score:
    """The mean over columns by the paper's rule; it has an interval if all of them have one."""
    scales = [plan.paper.scale.get(column, 1) for column in scores]
    value = sum(one.value / scale for one, scale in zip(scores.values(), scales)) / len(scores)
    halves = [one.half / scale for one, scale in zip(scores.values(), scales) if one.half is not None]
    return Score(value, math.hypot(*halves) / len(scores) if len(halves) == len(scores) else None)


def relative_score(mean: Score, whole: Score) -> Score | None:
    """A mean in percent of that with all tokens; None where one of them is 0."""
    if whole.value <= 0 or mean.value <= 0:
        return None
    ratio = 100 * mean.value / whole.value
    if mean == whole or mean.half is None or whole.half is None:
        return Score(ratio, None)
    return Score(ratio, ratio * math.hypot(mean.half / mean.value, whole.half / whole.value))


def beside_paper_table(plan: Plan, scores: Mapping[str, Mapping[str, Score]]) -> ResultTable:
    """Every cell's scores beside the paper's; `scores` are by cell and column, and may lack some."""
    columns = [column for column in plan.columns if any(column in found for found in scores.values())]
    rows = []
    whole = mean_score(plan, scores[ALL_TOKENS]) if scores.get(ALL_TOKENS) else None
    for cell in plan.cells:
        found = scores.get(cell.name)
        if not found:
            continue
        printed = _paper_values(plan, cell, columns)
        cells = [_side_by_side(found.get(column), printed.get(column)) for column in columns]
        mean = mean_score(plan, found)
        relative = relative_score(mean, whole) if whole is not None else None
        cells += [_side_by_side(mean, printed.get("mean")), _side_by_side(relative, printed.get("relative"))]
        rows.append([cell.row, f"{cell.keep:g}", *cells])
    titles = [plan.paper.columns.get(column, column) for column in columns]
    titles += ["mean", "relative"]
    return ResultTable(f"{plan.name}, beside the paper", ["method", "keep", *titles], rows, NOTE + _splits_note(plan))


def _splits_note(plan: Plan) -> str:
    """Which columns are of another split than the paper's, in a sentence; empty if none is."""
    other = {plan.paper.columns.get(one, one): plan.benchmark(one).paper_split for one in plan.columns}
    said = ", ".join(f"{title} of {split}" for title, split in other.items() if split)
    return (
        f" The paper has {said}; here it is the validation split, as the other's answers are not public."
        if said
        else ""
    )


def _paper_values(plan: Plan, cell: Cell, columns: Sequence[str]) -> dict[str, float]:
    """The paper's values of a cell, with its mean over the same columns and what that is relative to all tokens."""
    paper = plan.paper
    values = paper.values.get((cell.row, cell.keep))
    if values is None:
        return {}
    name = {"efficiency": {"pope": "f1"}}.get(plan.name, {})
    found = {column: values[name.get(column, column)] for column in columns if name.get(column, column) in values}
    whole = paper.values.get((ALL_TOKENS, paper.tokens))
    if len(found) == len(columns) and columns:
        found["mean"] = sum(found[column] / paper.scale.get(column, 1) for column in columns) / len(columns)
        if whole is not None:
            all_tokens = [whole[name.get(column, column)] / paper.scale.get(column, 1) for column in columns]
            found["relative"] = 100 * found["mean"] / (sum(all_tokens) / len(all_tokens))
    return found


def _side_by_side(here: Score | None, paper: float | None) -> str:
    """A score and the paper's: "61.2 ± 0.8 (61.9)"; a sign if they differ by more than the interval."""
    if here is None:
        return "-"
    said = f"{here.value:.1f}" + (f" ± {here.half:.1f}" if here.half is not None else "")
    if paper is None:
        return said
    differs = here.half is not None and abs(here.value - paper) > here.half
    return f"{said} ({paper:.1f})" + (" ≠" if differs else "")


def paired_table(plan: Plan, samples: Mapping[str, Sequence[Mapping[str, Any]]]) -> ResultTable:
    """Script against each other method of the table of significance, question by question; `samples` are by cell.

    The paper repeats a run with 20 seeds; decoding is greedy here, so that a second run says the same, and the pairs
    are questions.
    """
    from vlprune.evaluation.stats import format_p, paired_tests

    rows, metric = [], "mme_perception_score"
    for keep in dict.fromkeys(cell.keep for cell in plan.cells if cell.method is not None):
        mine = _outcomes(samples.get(f"script@{keep:g}", ()), metric)
        for cell in plan.cells:
            its = _outcomes(samples.get(cell.name, ()), metric)
            if cell.keep != keep or cell.row == "script" or not mine or len(its) != len(mine):
                continue
            t, wilcoxon = paired_tests(mine, its)
            more = 100 * (sum(mine) - sum(its)) / len(mine)
            paper = plan.paper.values.get((cell.row, cell.keep), {})
            printed = [f"{paper[name]:.2g}" if name in paper else "" for name in ("t", "wilcoxon")]
            found = ["-" if t is None else format_p(t), format_p(wilcoxon)]
            rows.append([cell.row, f"{keep:g}", f"{more:+.1f}", *found, *printed])
    columns = ["method", "keep", "script right, more by points", "t", "Wilcoxon", "paper: t", "paper: Wilcoxon"]
    note = "One-sided p that Script answers more, over questions; the paper's are over 20 runs with other seeds."
    return ResultTable("Script against the others, paired", columns, rows, note)


def _outcomes(samples: Sequence[Mapping[str, Any]], metric: str) -> list[float]:
    return [one for one in (sample_score(sample, metric) for sample in samples) if one is not None]

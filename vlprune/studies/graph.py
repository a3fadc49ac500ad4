"""Which graph: every pair, every other token against the rest, or two random halves; and no graph, or half of one."""

from __future__ import annotations

import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch

from vlprune.evaluation.accuracy import (
    INTERVALS_NOTE,
    outcomes,
    percent,
    percent_interval,
    percent_with_interval,
    score_answers,
)
from vlprune.evaluation.answers import AnswerLine, Evaluation, share_right
from vlprune.evaluation.image_tokens import collect_image_tokens
from vlprune.evaluation.plots import plot_rows
from vlprune.evaluation.questions import ImageQuestion
from vlprune.evaluation.reference_methods import ALL_TOKENS, GraphAndRandom, keep_all_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import format_p, mcnemar, wilson_interval
from vlprune.methods import GraphOnly, Method, Random, Script
from vlprune.record import Record
from vlprune.selection import graph_scores

NEEDS, QUESTIONS, KEEP = "answers", (200, 20), (0.1,)
GRAPHS = {"exhaustive": "full", "bipartite": "bipartite", "random halves": "random"}
PAIRS = {"exhaustive": 100, "bipartite": 50, "random halves": 50, "random tokens": 0}

#: What keeps tokens in the table of ordinary tokens: the name of its row, by the name of its cell.
ORDINARY = {
    "bipartite": "the graph alone",
    "graph, a quarter random": "a quarter at random",
    "graph, half random": "half at random",
    "random tokens": "all at random",
    "random in the graph's quarter": "random, least redundant quarter",
}
ORDINARY_NOTE = (
    "Right answers in % with Wilson's 95 % intervals. Lost, won: questions that only the graph alone answers, and that "
    "only this row answers; p is McNemar's, exact and two-sided, not corrected. A quarter, half of the budget: so many "
    "of the graph's tokens give way to any others; if answers get better, the model needs ordinary tokens too, and the "
    "graph keeps too few. All: no graph. Least redundant quarter: tokens that the graph likes, but not its first; if "
    "answers are as bad as with the graph alone, that part of the image is not enough, if better, it is the very least "
    "redundant tokens that serve badly."
)
NOTE = (
    "IoU: of the kept sets with those of the exhaustive graph, mean over questions. Time: scores of one image on this "
    "machine, median. Pairs: share of the distinct ones."
)


def study(evaluation: Evaluation) -> StudyResult:
    """Time of the graph, agreement of what it keeps with the exhaustive graph's, and accuracy, alone and in Script."""
    tables, data = [], {}
    seconds = _measure_seconds(evaluation)
    for keep in evaluation.keep:
        beside = _beside_the_graph(keep)
        cells = _methods(keep) | beside
        lines = evaluation.ask(
            {ALL_TOKENS: keep_all_tokens(), **{f"{name}@{keep}": method for name, method in cells.items()}},
            details=_kept_tokens,
        )
        found: dict[str, Any] = {}
        alone = outcomes(lines[f"bipartite@{keep}"])
        for name in cells:
            own = lines[f"{name}@{keep}"]
            first = "script exhaustive" if name.startswith("script") else "exhaustive"
            found[name] = score_answers(evaluation, own, lines[ALL_TOKENS])
            found[name]["iou"] = agreement(own, lines[f"{first}@{keep}"])
            found[name]["seconds"] = seconds.get(name)
            found[name] |= dict(zip(("lost", "won", "p"), mcnemar(alone, outcomes(own))))
        accuracy = percent(share_right(lines[ALL_TOKENS]))
        columns = ["what keeps", "pairs", "ms an image", "faster", "IoU", "right"]
        rows = [_row(name, found[name], seconds["exhaustive"]) for name in found if name not in beside]
        note = f"All tokens: {accuracy}. {NOTE} {INTERVALS_NOTE}"
        tables += [ResultTable(f"Graphs, keeping {keep}", columns, rows, note), _ordinary_table(keep, found)]
        data[str(keep)] = found
    return StudyResult("Which graph", tables, {"graphs": _figure(data)}, data)


def _methods(keep: int | float) -> dict[str, Method]:
    """Each graph alone, random tokens, and each graph in Script."""
    methods: dict[str, Method] = {name: GraphOnly(keep=keep, graph=graph) for name, graph in GRAPHS.items()}
    methods["random tokens"] = Random(keep=keep)
    for name, graph in GRAPHS.items():
        methods[f"script {name}"] = Script(keep=keep, graph=graph)
    return methods


def _beside_the_graph(keep: int | float) -> dict[str, Method]:
    """The graph's tokens with ordinary ones beside them, where that is not the graph alone or `Random`."""
    return {
        "graph, a quarter random": GraphAndRandom(keep, share=0.25),
        "graph, half random": GraphAndRandom(keep, share=0.5),
        "random in the graph's quarter": GraphAndRandom(keep, share=1.0, among=0.25),
    }


def _ordinary_table(keep: int | float, found: Mapping[str, Any]) -> ResultTable:
    """Right answers where a part of the graph's tokens gives way to random ones, by kind of question."""
    rows = []
    for name, title in ORDINARY.items():
        one = found[name]
        kinds = [(one["right"][kind], asked) for kind, asked in one["asked"].items()]
        by_kind = [percent_with_interval(right / asked, wilson_interval(right, asked)) for right, asked in kinds]
        compared = ["", "", ""] if name == "bipartite" else [str(one["lost"]), str(one["won"]), format_p(one["p"])]
        rows.append([title, percent_with_interval(one["accuracy"], one["interval"]), *compared, *by_kind])
    columns = ["what keeps", "right", "lost", "won", "p", *found["bipartite"]["asked"]]
    title = f"Ordinary tokens beside the graph's, keeping {keep}"
    return ResultTable(title, columns, rows, ORDINARY_NOTE)


def _row(name: str, score: Mapping[str, Any], exhaustive_seconds: float) -> list[str]:
    seconds = score["seconds"]
    times = ["", ""] if seconds is None else [f"{1000 * seconds:.2f}", f"{exhaustive_seconds / seconds:.2f}×"]
    pairs = f"{PAIRS[name.removeprefix('script ')]} %"
    right = percent_with_interval(score["accuracy"], score["interval"])
    return [name, pairs, *times, f"{score['iou']:.2f}", right]


def agreement(a: list[AnswerLine], b: list[AnswerLine]) -> float:
    """The mean intersection over union of what two methods kept.

    >>> agreement([{"kept": [1, 2]}], [{"kept": [2, 3]}]) == 1 / 3
    True
    """
    pairs = [(set(x["kept"]), set(y["kept"])) for x, y in zip(a, b)]
    return sum(len(x & y) / len(x | y) for x, y in pairs) / len(pairs)


def _kept_tokens(question: ImageQuestion, record: Record) -> dict[str, Any]:
    return {"kept": record.kept.tolist()}


def _measure_seconds(evaluation: Evaluation) -> dict[str, float]:
    """How long each graph's scores of one image take, on the model's device."""
    device = evaluation.loaded.model.device
    questions = evaluation.questions[:12]
    images = collect_image_tokens(evaluation, questions)[: 2 if evaluation.small else 8]
    found: dict[str, list[float]] = {name: [] for name in GRAPHS}
    for repeat in range(4):  # the first warms up
        for image in images:
            features = image.features[None].to(device)
            for name, graph in GRAPHS.items():
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                start = time.perf_counter()
                graph_scores(features, graph=graph)
                if device.type == "cuda":
                    torch.cuda.synchronize(device)
                found[name] += [time.perf_counter() - start] * bool(repeat)
    return {name: median(times) for name, times in found.items()}


def _figure(data: dict[str, Any]) -> Any:
    rows: dict[str, dict[str, Any]] = {}
    for keep, found in data.items():
        for name, one in found.items():
            rows.setdefault(name, {})[f"keep {keep}"] = percent_interval(one)
    title = "Right answers by which pairs of tokens the graph compares"
    note = "Three graphs alone and in Script, and random tokens alone and beside the graph's. Bars are 95 % intervals"
    return plot_rows(rows, x="right answers, %", title=title, note=note)

"""Which graph: every pair, every other token against the rest, or two random halves; and no graph at all."""

from __future__ import annotations

import time
from statistics import median
from typing import TYPE_CHECKING, Any

from vlprune.evaluation.accuracy import INTERVALS, percent, ranged, score, whole
from vlprune.evaluation.answers import WHOLE, Bench, Line
from vlprune.evaluation.image_tokens import look
from vlprune.evaluation.result import Result, Table

if TYPE_CHECKING:
    from vlprune.evaluation.questions import Item
    from vlprune.methods import Method
    from vlprune.record import Record

NEEDS, QUESTIONS, KEEP = "answers", (200, 1), (0.1,)
GRAPHS = {"exhaustive": "full", "bipartite": "bipartite", "random halves": "random"}
PAIRS = {"exhaustive": 100, "bipartite": 50, "random halves": 50, "random tokens": 0}

NOTE = (
    "IoU: of the kept sets with those of the exhaustive graph, mean over questions. Time: scores of one image on this "
    "machine, median. Pairs: share of the distinct ones."
)


def study(bench: Bench) -> Result:
    """Time of the graph, agreement of what it keeps with the exhaustive graph's, and accuracy, alone and in Script."""
    from vlprune.methods import GraphOnly, Random, Script

    tables, data = [], {}
    seconds = _seconds(bench)
    for keep in bench.keep:
        alone: dict[str, Method] = {name: GraphOnly(keep=keep, graph=graph) for name, graph in GRAPHS.items()}
        alone["random tokens"] = Random(keep=keep)
        inside = {name: Script(keep=keep, graph=graph, fusion="supplement") for name, graph in GRAPHS.items()}
        cells: dict[str, Method] = {f"{name}@{keep}": method for name, method in alone.items()}
        cells |= {f"script {name}@{keep}": method for name, method in inside.items()}
        lines = bench.ask({WHOLE: whole(), **cells}, note=_kept)
        found: dict[str, Any] = {}
        for cell in cells:
            name = cell.rpartition("@")[0]
            first = "script exhaustive" if name.startswith("script") else "exhaustive"
            found[name] = score(bench, lines[cell], lines[WHOLE])
            found[name]["iou"] = agreement(lines[cell], lines[f"{first}@{keep}"])
            found[name]["seconds"] = seconds.get(name)
        rows = []
        for name, one in found.items():
            took = one["seconds"]
            times = ["", ""] if took is None else [f"{1000 * took:.2f}", f"{seconds['exhaustive'] / took:.2f}×"]
            pairs = f"{PAIRS[name.removeprefix('script ')]} %"
            rows.append([name, pairs, *times, f"{one['iou']:.2f}", ranged(one["accuracy"], one["interval"])])
        base = percent(score(bench, lines[WHOLE], lines[WHOLE])["accuracy"])
        columns = ["what keeps", "pairs", "ms an image", "faster", "IoU", "right"]
        tables.append(Table(f"Graphs, keeping {keep}", columns, rows, f"All tokens: {base}. {NOTE} {INTERVALS}"))
        data[str(keep)] = found
    return Result("Which graph", tables, {"graphs": _figure(data)}, data)


def agreement(a: list[Line], b: list[Line]) -> float:
    """The mean intersection over union of what two methods kept.

    >>> agreement([{"kept": [1, 2]}], [{"kept": [2, 3]}]) == 1 / 3
    True
    """
    pairs = [(set(x["kept"]), set(y["kept"])) for x, y in zip(a, b)]
    return sum(len(x & y) / len(x | y) for x, y in pairs) / len(pairs)


def _kept(item: Item, record: Record) -> dict[str, Any]:
    return {"kept": record.kept.tolist()}


def _seconds(bench: Bench) -> dict[str, float]:
    """How long each graph's scores of one image take, on the model's device."""
    import torch

    from vlprune.selection import graph_scores

    device = bench.loaded.model.device
    images = look(bench, bench.items[:12], tiles=True)[: 2 if bench.small else 8]
    found: dict[str, list[float]] = {name: [] for name in GRAPHS}
    for repeat in range(4):  # the first warms up
        for one in images:
            features = one.features[None].to(device)
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
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for keep, found in data.items():
        for name, one in found.items():
            axes.scatter(one["iou"], 100 * one["accuracy"], s=30, label=f"{name}, {keep}")
    axes.set(xlabel="IoU with the exhaustive graph", ylabel="right answers, %", xlim=(0, 1.05))
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    return figure

"""How many tokens GSP and QCSP agree on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vlprune.evaluation.accuracy import percent, score, whole
from vlprune.evaluation.answers import WHOLE, Bench, Line
from vlprune.evaluation.result import Result, Table
from vlprune.evaluation.stats import interval, resampled

if TYPE_CHECKING:
    from vlprune.evaluation.questions import Item
    from vlprune.methods import Method
    from vlprune.record import Record

NEEDS, QUESTIONS, KEEP = "answers", (200, 1), (192, 128, 64, 32, 16)


def study(bench: Bench) -> Result:
    """The intersection of what GSP and QCSP would each keep, of m tokens, against m."""
    from vlprune.methods import Script

    cells: dict[str, Method] = {WHOLE: whole()}
    cells |= {f"script@{keep}": Script(keep=keep, fusion="supplement") for keep in bench.keep}
    lines = bench.ask(cells, note=both)
    groups = [item.group for item in bench.items]
    rows, data = [], {}
    for keep in bench.keep:
        found = lines[f"script@{keep}"]
        shares = [line["both"] / line["m"] for line in found]
        low, high = interval(resampled([shares], groups)[:, 0])
        chance = sum(line["m"] / line["n"] for line in found) / len(found)
        mean, count = sum(shares) / len(shares), sum(line["both"] for line in found) / len(found)
        accuracy = score(bench, found, lines[WHOLE])["accuracy"]
        data[str(keep)] = {"share": mean, "interval": [low, high], "chance": chance, "accuracy": accuracy}
        by_kind = [percent(_mean(bench, found, kind)) for kind in bench.kinds]
        both_ = f"{percent(mean)} [{percent(low)}, {percent(high)}]"
        rows.append([str(keep), f"{count:.1f}", both_, percent(chance), *by_kind, percent(accuracy)])
    kinds = [f"% {kind}" for kind in bench.kinds]
    note = (
        "Tokens that both modules keep, their share of the m in % with a 95 % interval (bootstrap over images), the "
        "share that two random sets of m would have, and the share for each kind of question."
    )
    table = Table("GSP ∩ QCSP", ["m", "both", "% of m", "% by chance", *kinds, "right, %"], rows, note)
    return Result("Overlap", [table], {"overlap": _figure(data)}, data)


def both(item: Item, record: Record) -> dict[str, Any]:
    """What the two modules agree on, from the scores that Script keeps."""
    from vlprune.selection import graph_keep

    if record.redundancy is None or record.order is None:
        return {}
    graph = graph_keep(record.redundancy[None], record.after)[0].tolist()
    order = record.order[: record.after].tolist()
    return {"both": len(set(graph) & set(order)), "m": record.after, "n": record.before}


def _mean(bench: Bench, lines: list[Line], kind: str) -> float:
    own = [line["both"] / line["m"] for item, line in zip(bench.items, lines) if item.kind == kind]
    return sum(own) / len(own)


def _figure(data: dict[str, Any]) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.8), layout="constrained")
    axes = figure.subplots()
    shares = [100 * one["share"] for one in data.values()]
    ends = [[abs(100 * one["interval"][i] - share) for one, share in zip(data.values(), shares)] for i in (0, 1)]
    axes.errorbar(list(data), shares, ends, marker="o", capsize=3, label="GSP ∩ QCSP")
    axes.plot(list(data), [100 * one["chance"] for one in data.values()], "--", color="grey", label="by chance")
    axes.set(xlabel="visual tokens kept, m", ylabel="% of m")
    axes.legend()
    return figure

"""How many tokens GSP and QCSP agree on."""

from __future__ import annotations

from typing import Any

from vlprune.evaluation.accuracy import percent, percent_with_interval
from vlprune.evaluation.answers import AnswerLine, Evaluation, share_right
from vlprune.evaluation.questions import ImageQuestion
from vlprune.evaluation.reference_methods import ALL_TOKENS, keep_all_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import bootstrap_interval, bootstrap_means
from vlprune.methods import Method, Script
from vlprune.record import Record
from vlprune.selection import graph_keep
from vlprune.show.style import COLORS, MARKERS, add_legend, dress, new_figure

NEEDS, QUESTIONS, KEEP = "answers", (200, 12), (192, 128, 64, 32, 16)


def study(evaluation: Evaluation) -> StudyResult:
    """The intersection of what GSP and QCSP would each keep, of m tokens, against m."""
    cells: dict[str, Method] = {ALL_TOKENS: keep_all_tokens()}
    cells |= {f"script@{keep}": Script(keep=keep) for keep in evaluation.keep}
    lines = evaluation.ask(cells, details=count_common)
    images = [question.image_name for question in evaluation.questions]
    rows, data = [], {}
    for keep in evaluation.keep:
        found = lines[f"script@{keep}"]
        shares = [line["both"] / line["m"] for line in found]
        low, high = bootstrap_interval(bootstrap_means([shares], images)[:, 0], images, (0, 1))
        chance = sum(line["m"] / line["n"] for line in found) / len(found)
        mean, count = sum(shares) / len(shares), sum(line["both"] for line in found) / len(found)
        accuracy = share_right(found)
        data[str(keep)] = {"share": mean, "interval": [low, high], "chance": chance, "accuracy": accuracy}
        by_kind = [percent(_mean_share(evaluation, found, kind)) for kind in evaluation.kinds]
        common = percent_with_interval(mean, (low, high))
        rows.append([str(keep), f"{count:.1f}", common, percent(chance), *by_kind, percent(accuracy)])
    kinds = [f"% {kind}" for kind in evaluation.kinds]
    note = (
        "Tokens that both modules keep, their share of the m in % with a 95 % interval (bootstrap over images), the "
        "share that two random sets of m would have, and the share for each kind of question."
    )
    table = ResultTable("GSP ∩ QCSP", ["m", "both", "% of m", "% by chance", *kinds, "right, %"], rows, note)
    return StudyResult("Overlap", [table], {"overlap": _figure(data)}, data)


def count_common(question: ImageQuestion, record: Record) -> dict[str, Any]:
    """How many of m tokens both modules keep, from the scores that Script records."""
    if record.redundancy is None or record.order is None:
        return {}
    graph = graph_keep(record.redundancy[None], record.after)[0].tolist()
    order = record.order[: record.after].tolist()
    return {"both": len(set(graph) & set(order)), "m": record.after, "n": record.before}


def _mean_share(evaluation: Evaluation, lines: list[AnswerLine], kind: str) -> float:
    """The mean share of tokens that both keep, over questions of that kind."""
    own = [line["both"] / line["m"] for question, line in zip(evaluation.questions, lines) if question.kind == kind]
    return sum(own) / len(own)


def _figure(data: dict[str, Any]) -> Any:
    figure = new_figure(3.6, "Tokens that both of Script's modules would keep")
    axes = figure.subplots()
    data = dict(sorted(data.items(), key=lambda pair: float(pair[0])))
    shares = [100 * one["share"] for one in data.values()]
    ends = [[abs(100 * one["interval"][i] - share) for one, share in zip(data.values(), shares)] for i in (0, 1)]
    found = axes.errorbar(list(data), shares, ends, color=COLORS[0], marker=MARKERS[0], capsize=2)
    (chance,) = axes.plot(list(data), [100 * one["chance"] for one in data.values()], "--", color="grey")
    axes.set_ylim(bottom=0)
    dress(axes, x="m, the visual tokens that each keeps; bars are 95 % intervals", y="share of the m, %")
    names = ["GSP ∩ QCSP: by the graph and by the question", "two random sets of m"]
    add_legend(figure, [found, chance], names)
    return figure

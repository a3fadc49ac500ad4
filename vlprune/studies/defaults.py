"""Script's settings, one changed at a time: which of them answer best?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from vlprune.evaluation.accuracy import INTERVALS, percent, ranged, score, whole
from vlprune.evaluation.answers import WHOLE, Bench
from vlprune.evaluation.result import Result, Table
from vlprune.evaluation.stats import mcnemar
from vlprune.methods import Method, Script
from vlprune.methods.base import QueryMethod
from vlprune.selection import greedy_map_features, grid_cells, relevance_scores
from vlprune.types import Selection

if TYPE_CHECKING:
    from vlprune.types import Query, TokenView

NEEDS, QUESTIONS, KEEP = "answers", (600, 1), (64, 16)
NOTE = (
    "The first row is Script as it is by default; each other row changes what it says. Lost, won: questions that only "
    "the default answers, and that only this setting answers; p is McNemar's, exact and two-sided, not corrected for "
    "the number of rows."
)


@dataclass(frozen=True)
class ByBatch(QueryMethod):
    """QCSP with relevance scaled to [0, 1] over all images of a batch together, not in each."""

    name: ClassVar[str] = "by_batch"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        assert query is not None
        cosine = query.sign * torch.cosine_similarity(query.image.float(), query.text.float(), dim=-1)
        relevance = (cosine - cosine.min()) / (cosine.max() - cosine.min()).clamp(min=1e-6)
        order = greedy_map_features(view.features, relevance, self.count(view.n), fill=Script.fill, grid=view.grid)
        return Selection(kept=order.sort(dim=1).values, order=order, relevance=relevance)


@dataclass(frozen=True)
class ByQuarter(QueryMethod):
    """QCSP in each quarter of the image by itself, a quarter of the budget each, as a budget per tile would."""

    name: ClassVar[str] = "by_quarter"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        assert query is not None
        m, device = self.count(view.n), view.features.device
        relevance = relevance_scores(query.image, query.text, sign=query.sign)
        cells = grid_cells(*view.grid, min(4, view.n))[0].to(device)
        orders = []
        for quarter in range(4):
            at = (cells == quarter).nonzero()[:, 0]
            share = min(len(at), (m + 3 - quarter) // 4)
            if share:
                order = greedy_map_features(view.features[:, at], relevance[:, at], share, fill=Script.fill)
                orders.append(at[order])
        order = torch.cat(orders, dim=1)
        return Selection(kept=order.sort(dim=1).values, order=order, relevance=relevance)


def settings(keep: Any, twin: bool) -> dict[str, tuple[Method, str | None]]:
    """Each setting's name, method and positions; `twin` says whether there is a dual encoder to compare with."""
    usual = Script(keep=keep)
    graph = replace(usual, fusion="supplement")
    found: dict[str, Method] = {
        "default": usual,
        "fusion supplement (the paper's text)": graph,
        **{f"fusion filter, rho {rho}": replace(usual, fusion="filter", rho=rho) for rho in (0.5, 0.7, 0.9)},
        **{f"supplement, graph {kind}": replace(graph, graph=kind) for kind in ("full", "random")},
        **{f"supplement, tau {tau}": replace(graph, tau=tau) for tau in (0.1, 0.5, 0.7, 0.9, "otsu", "quantile")},
        **{f"fill {fill}": replace(usual, fill=fill) for fill in (0.0, 0.005, 0.01, 0.05)},
        "kernel s": replace(usual, kernel="s"),
        "min-max over the batch": ByBatch(keep=keep),
        "a quarter of the budget per quarter": ByQuarter(keep=keep),
        "relevance from the LLM, sign +1": replace(usual, relevance="llm", sign=1),
        "relevance from the LLM, sign -1": replace(usual, relevance="llm", sign=-1),
    }
    if twin:
        found |= {f"relevance from CLIP, sign {s:+d}": replace(usual, relevance="clip", sign=s) for s in (1, -1)}
    ways: dict[str, tuple[Method, str | None]] = {name: (method, None) for name, method in found.items()}
    return ways | {"positions original": (usual, "original")}


def study(bench: Bench) -> Result:
    """The default and every other setting, on the same questions."""
    tables, data = [], {}
    for keep in bench.keep:
        ways = settings(keep, bench.loaded.clip is not None)
        cells = {WHOLE: whole(), **{f"{name}@{keep}": method for name, (method, at) in ways.items() if at is None}}
        lines = bench.ask(cells)
        for name, (method, positions) in ways.items():
            if positions is not None:
                lines |= bench.ask({f"{name}@{keep}": method}, positions=positions)
        usual = [bool(line["right"]) for line in lines[f"default@{keep}"]]
        rows = []
        for name in ways:
            found = lines[f"{name}@{keep}"]
            one = score(bench, found, lines[WHOLE])
            lost, won, p = mcnemar(usual, [bool(line["right"]) for line in found])
            data[f"{name}@{keep}"] = one | {"lost": lost, "won": won, "p": p}
            kinds = [percent(one["right"][kind] / count) for kind, count in one["asked"].items()]
            compared = [str(lost), str(won), f"{p:.2g}"] if name != "default" else [""] * 3
            rows.append([name, ranged(one["accuracy"], one["interval"]), *kinds, *compared])
        columns = ["setting", "right", *bench.kinds, "lost", "won", "p"]
        tables.append(Table(f"Settings of Script, keeping {keep}", columns, rows, f"{INTERVALS} {NOTE}"))
    return Result("Defaults", tables, {"defaults": _figure(data, bench)}, {"scores": data})


def _figure(data: dict[str, Any], bench: Bench) -> Any:
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(cell.rpartition("@")[0] for cell in data))[::-1]
    figure = Figure(figsize=(8.5, 1 + 0.27 * len(names)), layout="constrained")
    axes = figure.subplots()
    for i, keep in enumerate(bench.keep):
        found = [data[f"{name}@{keep}"] for name in names]
        middle = [100 * one["accuracy"] for one in found]
        spread = [[abs(100 * one["interval"][end] - mean) for one, mean in zip(found, middle)] for end in (0, 1)]
        places = [place + 0.16 * (i - (len(bench.keep) - 1) / 2) for place in range(len(names))]
        axes.errorbar(middle, places, xerr=spread, fmt="o", capsize=2, markersize=4, label=f"keep {keep}")
        axes.axvline(100 * data[f"default@{keep}"]["accuracy"], color=f"C{i}", linewidth=0.7, linestyle="--")
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set(xlabel="right answers, %")
    axes.grid(alpha=0.25)
    axes.legend(fontsize=8)
    return figure

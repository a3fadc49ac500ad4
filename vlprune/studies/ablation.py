"""GSP, QCRS and DPP on and off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vlprune.evaluation.accuracy import INTERVALS, ranged, score, whole
from vlprune.evaluation.answers import WHOLE, Bench
from vlprune.evaluation.plots import curves
from vlprune.evaluation.result import Result, Table
from vlprune.methods import Method, Random
from vlprune.methods.base import QueryMethod
from vlprune.selection import fuse, graph_keep, graph_scores, greedy_map_features, highest, relevance_scores
from vlprune.types import Selection

if TYPE_CHECKING:
    from vlprune.types import Query, TokenView

NEEDS, QUESTIONS, KEEP = "answers", (200, 1), (64, 16)


@dataclass(frozen=True)
class Parts(QueryMethod):
    """Script with some of its parts switched off.

    Tokens are ranked by the greedy on the kernel (`dpp`), weighed by relevance (`qcrs`) or not; without the greedy by
    relevance itself. With `gsp` the first m of that rank that the graph keeps stay, and the rank goes on where tokens
    are missing, as in Script. The graph alone keeps its m least redundant ones. All three together are the paper's
    Script (fusion "supplement"); QCRS and DPP without the graph are Script's default.

    >>> import torch
    >>> from vlprune.models import TokenView
    >>> from vlprune.pruning.question import Query
    >>> tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0]]])
    >>> query = Query(tokens, torch.tensor([[[1.0, 0.0]]]), 1, "llm", ("?",))
    >>> Parts(keep=2, gsp=False, qcrs=True, dpp=False).select(TokenView(tokens, (1, 3)), query).kept.tolist()
    [[0, 1]]
    """

    gsp: bool = True
    qcrs: bool = True
    dpp: bool = True
    tau: float = 0.3
    gamma: float = 5.0

    name: ClassVar[str] = "parts"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        assert query is not None
        m = self.count(view.n)
        survivors = graph_keep(graph_scores(view.features, tau=self.tau, gamma=self.gamma), m) if self.gsp else None
        if not self.qcrs and not self.dpp:
            if survivors is None:
                raise ValueError("gsp, qcrs and dpp are all off: that is Random.")
            return Selection(kept=survivors)
        r = relevance_scores(query.image, query.text, sign=query.sign)
        ranks = min(2 * m, view.n)
        if self.dpp:
            order = greedy_map_features(view.features, r if self.qcrs else r.new_ones(r.shape), ranks)
        else:
            order = highest(r, ranks)
        if survivors is None:
            return Selection(kept=order[:, :m].sort(dim=1).values, order=order, relevance=r)
        return Selection(kept=fuse(order, survivors, m, rule="supplement"), order=order, relevance=r)


def study(bench: Bench) -> Result:
    """All eight ways to switch the three parts on and off; with none of them, tokens are chosen at random."""
    ways = [(g, q, d) for d in (False, True) for q in (False, True) for g in (False, True)]
    cells: dict[str, Method] = {WHOLE: whole()}
    for keep in bench.keep:
        for way in ways:
            gsp, qcrs, dpp = way
            cells[_cell(way, keep)] = Parts(keep, gsp=gsp, qcrs=qcrs, dpp=dpp) if any(way) else Random(keep)
    lines = bench.ask(cells)
    scores = {name: score(bench, found, lines[WHOLE]) for name, found in lines.items()}
    tables = []
    for keep in bench.keep:
        rows = []
        for way in ways:
            one = scores[_cell(way, keep)]
            shares = ranged(one["accuracy"], one["interval"]), ranged(one["relative"], one["relative_interval"])
            rows.append([_name(*way), *("✓" if part else "–" for part in way), *shares])
        columns = ["parts", "GSP", "QCRS", "DPP", "right", "relative to all tokens"]
        tables.append(Table(f"Parts of Script, keeping {keep}", columns, rows, INTERVALS))
    return Result("Ablation", tables, {"ablation": _figure(bench, ways, scores)}, {"scores": scores})


def _name(gsp: bool, qcrs: bool, dpp: bool) -> str:
    on = [name for name, part in (("GSP", gsp), ("QCRS", qcrs), ("DPP", dpp)) if part]
    return " + ".join(on) or "none (random)"


def _cell(way: tuple[bool, bool, bool], keep: int | float) -> str:
    return f"{_name(*way)}@{keep}"


def _figure(bench: Bench, ways: Any, scores: Any) -> Any:
    lines: dict[str, list[tuple[float, float, float, float]]] = {}
    for way in ways:
        for keep in bench.keep:
            one = scores[_cell(way, keep)]
            low, high = one["interval"]
            lines.setdefault(_name(*way), []).append((one["entering"], 100 * one["accuracy"], 100 * low, 100 * high))
    flat = {"all tokens": 100 * scores[WHOLE]["accuracy"]}
    return curves(lines, flat=flat, x="visual tokens kept", y="right answers, %")

"""The parts of Script, GSP, QCRS and DPP, switched on and off, and the DPP's kernel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from vlprune.evaluation.accuracy import INTERVALS_NOTE, accuracy_cells, cell_name, percent_interval, score_answers
from vlprune.evaluation.answers import Evaluation
from vlprune.evaluation.plots import plot_rows
from vlprune.evaluation.reference_methods import ALL_TOKENS, keep_all_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.methods import Method, Random
from vlprune.methods.base import QueryMethod
from vlprune.selection import fuse, graph_keep, graph_scores, greedy_map_features, highest, relevance_scores
from vlprune.types import Query, Selection, TokenView

NEEDS, QUESTIONS, KEEP = "answers", (200, 12), (64, 16)
COMBINATIONS = [(gsp, qcrs, dpp) for dpp in (False, True) for qcrs in (False, True) for gsp in (False, True)]
WHOLE, ROOT, PLAIN = "GSP + QCRS + DPP", "GSP + QCRS + DPP, kernel L", "GSP + DPP"
#: Kernels of the DPP in all of Script, by the combination or cell that has them.
KERNELS = {
    WHOLE: "L̃ = diag(r) S diag(r), the method section's",
    ROOT: "L = diag(r)^½ S diag(r)^½, Eq. 6",
    PLAIN: "S, the plain cosine, without relevance",
}
KERNELS_NOTE = "GSP and its fusion are as in Script; S is the tokens' cosine and r their relevance. "


@dataclass(frozen=True)
class Parts(QueryMethod):
    """Script with some of its parts switched off.

    Tokens are ranked by the greedy on the kernel (`dpp`), weighed by relevance (`qcrs`) or not; without the greedy by
    relevance itself. With `gsp` the first m of that rank that the graph keeps stay, and the rank goes on where tokens
    are missing, as in Script. The graph alone keeps its m least redundant ones. All three together are the paper's
    Script; QCRS and DPP without the graph are what CDPruner computes. `kernel` is as in Script.

    >>> import torch
    >>> from vlprune.types import Query, TokenView
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
    kernel: str = "s_prime"

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
            weights = r if self.qcrs else r.new_ones(r.shape)
            order = greedy_map_features(view.features, weights, ranks, kind=self.kernel)
        else:
            order = highest(r, ranks)
        if survivors is None:
            return Selection(kept=order[:, :m].sort(dim=1).values, order=order, relevance=r)
        return Selection(kept=fuse(order, survivors, m, rule="supplement"), order=order, relevance=r)


def study(evaluation: Evaluation) -> StudyResult:
    """All eight ways to switch the three parts on and off; with none of them, tokens are chosen at random."""
    cells: dict[str, Method] = {ALL_TOKENS: keep_all_tokens()}
    for keep in evaluation.keep:
        for parts in COMBINATIONS:
            gsp, qcrs, dpp = parts
            method = Parts(keep, gsp=gsp, qcrs=qcrs, dpp=dpp) if any(parts) else Random(keep)
            cells[cell_name(_title(*parts), keep)] = method
        cells[cell_name(ROOT, keep)] = Parts(keep, kernel="s")
    lines = evaluation.ask(cells)
    scores = {name: score_answers(evaluation, found, lines[ALL_TOKENS]) for name, found in lines.items()}
    tables = [_table(keep, scores) for keep in evaluation.keep]
    tables += [_kernels_table(keep, scores) for keep in evaluation.keep]
    return StudyResult("Ablation", tables, {"ablation": _figure(evaluation, scores)}, {"scores": scores})


def _title(gsp: bool, qcrs: bool, dpp: bool) -> str:
    on = [name for name, part in (("GSP", gsp), ("QCRS", qcrs), ("DPP", dpp)) if part]
    return " + ".join(on) or "none (random)"


def _table(keep: int | float, scores: Mapping[str, Any]) -> ResultTable:
    rows = []
    for parts in COMBINATIONS:
        marks = ["✓" if part else "–" for part in parts]
        rows.append([_title(*parts), *marks, *accuracy_cells(scores[cell_name(_title(*parts), keep)])])
    columns = ["parts", "GSP", "QCRS", "DPP", "right", "relative to all tokens"]
    return ResultTable(f"Parts of Script, keeping {keep}", columns, rows, INTERVALS_NOTE)


def _kernels_table(keep: int | float, scores: Mapping[str, Any]) -> ResultTable:
    rows = [[kernel, *accuracy_cells(scores[cell_name(cell, keep)])] for cell, kernel in KERNELS.items()]
    columns = ["kernel of the DPP", "right", "relative to all tokens"]
    return ResultTable(f"The DPP's kernel, keeping {keep}", columns, rows, KERNELS_NOTE + INTERVALS_NOTE)


def _figure(evaluation: Evaluation, scores: Mapping[str, Any]) -> Any:
    rows = {
        title: {f"keep {keep}": percent_interval(scores[cell_name(title, keep)]) for keep in evaluation.keep}
        for title in (_title(*parts) for parts in COMBINATIONS)
    }
    across = {ALL_TOKENS: 100 * scores[ALL_TOKENS]["accuracy"]}
    note = "GSP: the graph; QCRS: relevance to the question; DPP: the diverse choice. Bars are 95 % intervals"
    return plot_rows(rows, x="right answers, %", title="Script's parts, switched on and off", note=note, across=across)

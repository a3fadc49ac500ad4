"""Whether methods come in the paper's order here: Spearman's rank correlation with its tables, budget by budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import permutations
from typing import Any, NamedTuple

from vlprune.evaluation.result import ResultTable
from vlprune.evaluation.stats import format_p, spearman
from vlprune.studies.paper import ALL_TOKENS, PaperTable, tables

FEWEST = 3  # methods; of two, an order is hardly one
#: Methods of ours that compute what a row of the paper's ablation does.
ABLATION = {
    "none (random)": "random",
    "GSP": "graph_only",
    "QCRS": "relevance_top_k",
    "QCRS + DPP": "cdpruner",
    "GSP + QCRS + DPP": "script",
}
NOTE = (
    "rho: Spearman's, between the paper's means over benchmarks, computed again from its rows, and the means over "
    "kinds of question here, of the methods that both have; 1 is the same order, -1 the reverse. p: the share of all "
    "orders whose rho is as far from 0 or farther, exact, not corrected. Methods that cut inside the LLM "
    "(fastv, sparsevlm) have all tokens in its first layers, which are a larger part of an LLM with few layers. "
)


class Correlation(NamedTuple):
    """Methods in the paper's order and in that here, best first, at one budget."""

    table: str
    keep: float
    paper: list[str]
    here: list[str]
    rho: float
    p: float


def rank_correlation(data: Mapping[str, Any]) -> list[ResultTable]:
    """The table of correlations with the paper, in a list; none where fewer than three methods can be compared.

    `data` is that of `evaluate_methods`: {"scores": {"script@64": {"macro": 0.9, ...}, ...}}.
    """
    scores = data["scores"]
    compared = _tables_like(round(scores[ALL_TOKENS]["entering"]))
    found = [one for paper in compared for keep in paper.budgets for one in _correlate(paper, keep, scores)]
    if not found:
        return []
    rows = [
        [one.table, f"{one.keep:g}", ", ".join(one.paper), ", ".join(one.here), f"{one.rho:+.2f}", format_p(one.p)]
        for one in found
    ]
    budgets = dict.fromkeys(cell.rpartition("@")[2] for cell in scores if "@" in cell)
    missing = [keep for keep in budgets if all(keep not in map("{:g}".format, one.budgets) for one in compared)]
    lacks = f"The paper has nothing at {', '.join(missing)}." if missing else ""
    columns = ["paper's table", "keep", "order in the paper", "order here", "rho", "p"]
    return [ResultTable("Order of methods beside the paper's", columns, rows, (NOTE + lacks).strip())]


def _tables_like(tokens: int) -> list[PaperTable]:
    """The paper's tables of accuracy for models with so many visual tokens that have more than one method."""
    return [one for one in tables().values() if one.tokens == tokens and one.benchmarks and _names(one)]


def _names(paper: PaperTable) -> dict[str, str]:
    """Rows of a table of the paper, and our methods; {} for one that is not about methods."""
    if paper.name == "ablation":
        return ABLATION
    return {row: row for row in paper.rows if row != ALL_TOKENS} if "fastv" in paper.rows else {}


def _correlate(paper: PaperTable, keep: float, scores: Mapping[str, Any]) -> list[Correlation]:
    """The correlation at one budget, in a list; none if too few methods are in both."""
    printed, ours = {}, {}
    for row, method in _names(paper).items():
        cell = f"{method}@{keep:g}"
        if (row, keep) in paper.values and cell in scores:
            printed[method], ours[method] = paper.mean(row, keep), scores[cell]["macro"]
    if len(ours) < FEWEST:
        return []
    a, b = list(printed.values()), list(ours.values())
    return [Correlation(paper.name, keep, _best_first(printed), _best_first(ours), spearman(a, b), exact_p(a, b))]


def _best_first(values: Mapping[str, float]) -> list[str]:
    return sorted(values, key=lambda name: -values[name])


def exact_p(a: Sequence[float], b: Sequence[float]) -> float:
    """The share of orders of `b` whose rank correlation with `a` is at least as far from 0 as that of `b` itself.

    >>> round(exact_p([1, 2, 3], [10, 20, 30]), 3)   # two of the six orders: this one and its reverse
    0.333
    """
    own = abs(spearman(a, b))
    orders = list(permutations(b))
    return sum(abs(spearman(a, order)) >= own - 1e-9 for order in orders) / len(orders)

"""A budget that follows the image, against a fixed one with the same mean."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlprune.budget import Budget
from vlprune.errors import UserError
from vlprune.evaluation.accuracy import INTERVALS, percent, ranged, score, whole
from vlprune.evaluation.answers import WHOLE, Bench, Line, answers
from vlprune.evaluation.plots import curves
from vlprune.evaluation.questions import Item, pocket_items
from vlprune.evaluation.result import Result, Table
from vlprune.evaluation.stats import mcnemar
from vlprune.methods import Method, Script

if TYPE_CHECKING:
    from vlprune.record import Record

NEEDS, QUESTIONS, KEEP = "scenes", (600, 1), (64, 32, 16, 8)
SHOWN = (100, 2)  # questions of each kind to find the shares by
SEED = 4  # of scenes that neither training nor another split uses
NOTE = (
    "The share is found on other scenes. Tokens: the mean over questions, and the means over the scenes with the "
    "fewest and with the most things. Lost, won: questions that only the fixed budget answers, and that only the "
    "adaptive one does; p is McNemar's, exact and two-sided."
)


def study(bench: Bench) -> Result:
    """Script with a fixed number of tokens, and with as many as the image needs, at equal means."""
    for keep in bench.keep:
        if not isinstance(keep, int):
            raise UserError(f"--keep {keep}: study adaptive takes means, which are numbers of tokens.")
    shown = pocket_items(SEED, SHOWN[bench.small])
    asked: dict[str, Method] = {str(k): Script(keep=Budget(adaptive=0.0, mean=int(k))) for k in bench.keep}
    gains: dict[str, list[list[float]]] = {name: [] for name in asked}
    bench.expect(len(shown) * len(asked))
    for answered in answers(bench.loaded, shown, asked, batch=bench.batch):
        gains[answered.method] += [record.gains.tolist() for (record,) in answered.records if record.gains is not None]
        bench.tick("finding shares", len(answered.items))
    budgets = {keep: _rounded(Budget.fit(gains[str(keep)], int(keep))) for keep in bench.keep}
    cells: dict[str, Method] = {WHOLE: whole()}
    for keep in bench.keep:
        cells |= {f"fixed@{keep}": Script(keep=keep), f"adaptive@{keep}": Script(keep=budgets[keep])}
    lines = bench.ask(cells, note=crowd)
    rows, data = [], {}
    for keep in bench.keep:
        fixed, own = lines[f"fixed@{keep}"], lines[f"adaptive@{keep}"]
        lost, won, p = mcnemar(*([bool(line["right"]) for line in some] for some in (fixed, own)))
        for name, found in (("fixed", fixed), ("adaptive", own)):
            one = score(bench, found, lines[WHOLE])
            spread = _by_crowd(bench.items, found)
            data[f"{name}@{keep}"] = one | {"by_things": spread}
            kinds = [percent(one["right"][kind] / count) for kind, count in one["asked"].items()]
            few, many = spread[min(spread)], spread[max(spread)]
            tokens = [f"{one['entering']:.1f}", f"{few:.1f}", f"{many:.1f}"]
            said = "" if name == "fixed" else f"{budgets[keep].adaptive:.3g}"
            compared = [str(lost), str(won), f"{p:.2g}"] if name == "adaptive" else [""] * 3
            rows.append([name, str(keep), said, *tokens, ranged(one["accuracy"], one["interval"]), *kinds, *compared])
        data[f"adaptive@{keep}"] |= {"share": budgets[keep].adaptive, "lost": lost, "won": won, "p": p}
    columns = ["budget", "mean", "share", "tokens", "fewest things", "most things", "right", *bench.kinds]
    table = Table("Adaptive budgets", [*columns, "lost", "won", "p"], rows, f"{INTERVALS} {NOTE}")
    return Result("Adaptive budgets", [table], {"adaptive": _figure(bench, data)}, {"scores": data})


def _rounded(budget: Budget) -> Budget:
    """With a share of three digits: the last ones follow the number of threads, and a run goes on with its methods.

    >>> _rounded(Budget(adaptive=0.0123456, mean=8)).adaptive
    0.0123
    """
    return replace(budget, adaptive=float(f"{budget.adaptive:.3g}"))


def crowd(item: Item, record: Record) -> dict[str, Any]:
    return {"things": len(item.scene.things)} if item.scene is not None else {}


def _by_crowd(items: Sequence[Item], lines: Sequence[Line]) -> dict[int, float]:
    """Mean tokens by the number of things in the scene."""
    found: dict[int, list[int]] = {}
    for line in lines:
        found.setdefault(line["things"], []).append(line["entering"])
    return {things: sum(counts) / len(counts) for things, counts in sorted(found.items())}


def _figure(bench: Bench, data: dict[str, Any]) -> Any:
    points: dict[str, list[tuple[float, float, float, float]]] = {}
    for name in ("fixed", "adaptive"):
        for keep in bench.keep:
            one = data[f"{name}@{keep}"]
            low, high = one["interval"]
            points.setdefault(name, []).append((one["entering"], 100 * one["accuracy"], 100 * low, 100 * high))
    return curves(points, flat={}, x="visual tokens kept, mean", y="right answers, %")

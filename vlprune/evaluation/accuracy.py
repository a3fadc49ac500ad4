"""Accuracy of every method at every budget: `vlprune eval`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from vlprune.errors import UserError
from vlprune.evaluation.answers import WHOLE, Bench, Line
from vlprune.evaluation.plots import curves
from vlprune.evaluation.result import Result, Table
from vlprune.evaluation.stats import mcnemar, relative, wilson

if TYPE_CHECKING:
    from vlprune.methods import Method

INTERVALS = (
    "Right answers in %. Brackets: 95 % intervals; of shares by Wilson's score, of what is relative to all tokens by a "
    "paired bootstrap over images."
)
COUNTS = (
    "Entering, layer average: visual tokens that enter the LLM, and that one of its layers sees on average; compare "
    "methods at equal numbers in one of the two."
)
KINDS = "Right answers in %; the JSON has the counts."


def whole() -> Method:
    """All tokens, by the road that the methods take: keeping everything is the plain model bit for bit."""
    from vlprune.methods import UniformGrid

    return UniformGrid(keep=1.0)


def evaluate(bench: Bench, methods: Mapping[str, Mapping[str, Method]]) -> Result:
    """Score methods, given by name and then by budget as in {"script": {"64": Script(keep=64)}}.

    A method that the model cannot run is listed with the reason.
    """
    cells = {WHOLE: whole()}
    cells |= {cell(name, keep): method for name, by_keep in methods.items() for keep, method in by_keep.items()}
    lines = bench.ask(cells, lenient=True)
    if len(lines) == 1:
        raise UserError(next(f"{name}: {reason}" for name, reason in bench.run.refused.items() if name in cells))
    scores = {name: score(bench, found, lines[WHOLE]) for name, found in lines.items()}
    refused = {name: reason for name, reason in bench.run.refused.items() if name in cells}
    budgets = list(dict.fromkeys(keep for by_keep in methods.values() for keep in by_keep))
    ordered = [(WHOLE, "", WHOLE)] + [
        (name, keep, cell(name, keep))
        for keep in budgets
        for name, by_keep in methods.items()
        if keep in by_keep and cell(name, keep) in scores
    ]
    counted = f"{len(bench.items):,} questions about {len({item.group for item in bench.items}):,} images. "
    columns = ["method", "keep", "entering", "layer average", "right", "relative to all tokens"]
    rows = [[name, keep, *summary(scores[at], name == WHOLE)] for name, keep, at in ordered]
    tables = [Table("Accuracy", columns, rows, f"{counted}{INTERVALS} {COUNTS}")]
    if len(bench.kinds) > 1:
        rows = [[name, keep, *by_kind(scores[at])] for name, keep, at in ordered]
        tables.append(Table("Accuracy by kind of question", ["method", "keep", *bench.kinds, "all"], rows, KINDS))
    if len(bench.kinds) > 1 and "script" in methods and len(methods) > 1:
        tables.append(_ahead(bench, methods, lines))
    tables += [Table("Could not run", ["method", "why"], [[n, why] for n, why in refused.items()])] * bool(refused)
    return Result("Accuracy under pruning", tables, {"accuracy": _figure(ordered, scores)}, {"scores": scores})


def _ahead(bench: Bench, methods: Mapping[str, Mapping[str, Method]], lines: Mapping[str, Sequence[Line]]) -> Table:
    """Every kind of question and budget for which some method answers more than Script does."""
    rows = []
    for keep in methods["script"]:
        for kind in bench.kinds:
            right = {
                name: [
                    bool(line["right"]) for item, line in zip(bench.items, lines[cell(name, keep)]) if item.kind == kind
                ]
                for name in methods
                if name != "oracle" and cell(name, keep) in lines
            }
            mine = right.pop("script", [])
            for name, its in right.items():
                if sum(its) > sum(mine):
                    only, only_it, p = mcnemar(mine, its)
                    rows.append([name, keep, kind, str(sum(mine)), str(sum(its)), str(only), str(only_it), f"{p:.2g}"])
    columns = ["method", "keep", "kind", "script right", "it right", "only script", "only it", "p"]
    note = "p is McNemar's, exact and two-sided, not corrected for the number of comparisons. No rows: nowhere."
    return Table("Where a method answers more than script", columns, rows, note)


def cell(name: str, keep: str) -> str:
    return f"{name}@{keep}"


def score(bench: Bench, lines: Sequence[Line], base: Sequence[Line]) -> dict[str, Any]:
    """Right and asked per kind, the share of all, and what it is relative to the answers `base` with all tokens."""
    outcomes = [bool(line["right"]) for line in lines]
    kinds = {kind: [r for item, r in zip(bench.items, outcomes) if item.kind == kind] for kind in bench.kinds}
    whole = [bool(line["right"]) for line in base]
    ratio = relative(outcomes, whole, [item.group for item in bench.items])
    return {
        "right": {kind: sum(found) for kind, found in kinds.items()},
        "asked": {kind: len(found) for kind, found in kinds.items()},
        "accuracy": sum(outcomes) / len(outcomes),
        "interval": list(wilson(sum(outcomes), len(outcomes))),
        "relative": ratio[0],
        "relative_interval": list(ratio[1:]),
        "entering": sum(line["entering"] for line in lines) / len(lines),
        "layer_average": sum(line["average"] for line in lines) / len(lines),
    }


def summary(score: Mapping[str, Any], whole: bool = False) -> list[str]:
    """Tokens entering and per layer, right answers and what they are relative to all tokens, with intervals."""
    counts = [f"{score['entering']:.4g}", f"{score['layer_average']:.4g}"]
    part = "" if whole else ranged(score["relative"], score["relative_interval"])
    return [*counts, ranged(score["accuracy"], score["interval"]), part]


def by_kind(score: Mapping[str, Any]) -> list[str]:
    """Right answers of each kind, and of all."""
    return [*(percent(score["right"][k] / n) for k, n in score["asked"].items()), percent(score["accuracy"])]


def ranged(value: float, ends: Sequence[float]) -> str:
    """
    >>> ranged(0.5, (0.4, 0.6))
    '50.0 [40.0, 60.0]'
    """
    return f"{percent(value)} [{percent(ends[0])}, {percent(ends[1])}]"


def percent(value: float) -> str:
    """
    >>> percent(0.9944)
    '99.4'
    """
    return f"{100 * value:.1f}"


def _figure(ordered: Sequence[tuple[str, str, str]], scores: Mapping[str, Mapping[str, Any]]) -> Any:
    lines: dict[str, list[tuple[float, float, float, float]]] = {}
    for name, _, at in ordered[1:]:
        found = scores[at]
        ends = [100 * end for end in found["interval"]]
        lines.setdefault(name, []).append((found["layer_average"], 100 * found["accuracy"], ends[0], ends[1]))
    whole = scores[WHOLE]
    flat = {f"all {whole['entering']:.0f} tokens": 100 * whole["accuracy"]}
    return curves(lines, flat=flat, x="visual tokens, mean over the LLM's layers", y="right answers, %")

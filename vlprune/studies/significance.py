"""Is Script better than the others, or is it chance?"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any

from vlprune.errors import UserError
from vlprune.evaluation.accuracy import percent
from vlprune.evaluation.answers import Bench, Line, share
from vlprune.evaluation.questions import Item, pocket_items
from vlprune.evaluation.result import Result, Table
from vlprune.evaluation.stats import interval, mcnemar, paired_tests, resampled, scipy_stats

if TYPE_CHECKING:
    from vlprune.methods import Method

NEEDS, QUESTIONS, KEEP = "answers", (20, 1), (32,)
SEEDS = (20, 4)
FIRST = 1000  # seeds of scenes that no split uses
FEW = ("script", "random", "dpp_only")
NOTE = (
    "p (t), p (Wilcoxon): paired, one-sided, that Script is better, over the seeds' accuracies. Only Script, only it: "
    "questions that one answers and the other does not; McNemar's exact two-sided p. Difference: Script's right "
    "answers less the other's, in points, with a 95 % interval by bootstrap over images. No p is corrected for the "
    "number of methods."
)


def study(bench: Bench) -> Result:
    """Script against every other method on several sets of questions, by four tests.

    Most methods draw nothing at random, so a seed draws scenes and questions (and the random method's tokens). A file
    of questions is dealt out into as many parts instead.
    """
    from vlprune.methods import Script, get_method, list_methods

    scipy_stats()  # say that it is missing before anything is asked
    folds = _folds(bench)
    items = [item for fold in folds for item in fold]
    names = FEW if bench.small else list_methods()
    tables, data = [], {}
    for keep in bench.keep:
        cells: dict[str, Method] = {f"{name}@{keep}": get_method(name, keep=keep) for name in names}
        cells[f"script, the paper's text@{keep}"] = Script(keep=keep, fusion="supplement")
        lines = bench.ask(cells, items=items, lenient=True)
        found = {cell.rpartition("@")[0]: answered for cell, answered in lines.items()}
        if "script" not in found:
            raise UserError(f"script cannot run here: {bench.run.refused[f'script@{keep}']}")
        data[str(keep)] = {name: _compared(found["script"], found[name], folds, items) for name in found}
        rows = [_row(name, one) for name, one in sorted(data[str(keep)].items(), key=lambda pair: -pair[1]["mean"])]
        columns = ["method", "mean", "std", "p (t)", "p (Wilcoxon)", "only Script", "only it", "McNemar", "difference"]
        title = f"Script against others, keeping {keep}: {len(folds)} seeds, {len(items):,} questions"
        tables.append(Table(title, columns, rows, NOTE))
    return Result("Significance", tables, {"significance": _figure(data)}, data)


def _folds(bench: Bench) -> list[list[Item]]:
    seeds = SEEDS[bench.small]
    if bench.drawn:
        per_kind = sum(item.kind == bench.kinds[0] for item in bench.items)
        first = FIRST + bench.seed * seeds
        return [pocket_items(first + i, per_kind, start=100_000 * i) for i in range(seeds)]
    if len(bench.items) < 2 * seeds:
        raise UserError(f"--data has {len(bench.items)} questions: {seeds} parts need {2 * seeds} at least.")
    return [bench.items[i::seeds] for i in range(seeds)]


def _compared(script: Sequence[Line], other: Sequence[Line], folds: Sequence[Sequence[Item]], items: Any) -> Any:
    ends = [0]
    for fold in folds:
        ends.append(ends[-1] + len(fold))
    mine, its = ([share(lines[a:b]) for a, b in pairwise(ends)] for lines in (script, other))
    t, wilcoxon = paired_tests(mine, its)
    outcomes = [[bool(line["right"]) for line in lines] for lines in (script, other)]
    only, only_other, p = mcnemar(*outcomes)
    means = resampled(outcomes, [item.group for item in items])
    return {
        "seeds": its,
        "mean": mean(its),
        "std": stdev(its),
        "t": t,
        "wilcoxon": wilcoxon,
        "mcnemar": {"only_script": only, "only_other": only_other, "p": p},
        "difference": share(script) - share(other),
        "difference_interval": list(interval(means[:, 0] - means[:, 1])),
    }


def _row(name: str, one: Any) -> list[str]:
    cells = [name, percent(one["mean"]), percent(one["std"])]
    if name == "script":
        return [*cells, *[""] * 6]
    pairs = one["mcnemar"]
    low, high = (100 * end for end in one["difference_interval"])
    difference = f"{100 * one['difference']:+.1f} [{low:+.1f}, {high:+.1f}]"
    tests = [f"{one['t']:.2g}", f"{one['wilcoxon']:.2g}"]
    return [*cells, *tests, str(pairs["only_script"]), str(pairs["only_other"]), f"{pairs['p']:.2g}", difference]


def _figure(data: Any) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.8 + 0.3 * sum(map(len, data.values()))), layout="constrained")
    axes = figure.subplots()
    labels: list[str] = []
    for keep, found in data.items():
        for name, one in sorted(found.items(), key=lambda pair: pair[1]["difference"]):
            if name != "script":
                middle, (low, high) = one["difference"], one["difference_interval"]
                spread = [[max(0, 100 * (middle - low))], [max(0, 100 * (high - middle))]]
                axes.errorbar(100 * middle, len(labels), xerr=spread, marker="o", capsize=3, color="tab:blue")
                labels.append(f"{name}, {keep}")
    axes.axvline(0, color="grey", linestyle="--")
    axes.set_yticks(range(len(labels)), labels)
    axes.set(xlabel="Script's right answers less the method's, points")
    return figure

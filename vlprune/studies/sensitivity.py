"""How much Script depends on tau, gamma and the kernel."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from vlprune.evaluation.accuracy import INTERVALS, ranged, score, whole
from vlprune.evaluation.answers import WHOLE, Bench
from vlprune.evaluation.result import Result, Table

if TYPE_CHECKING:
    from vlprune.methods import Method

NEEDS, QUESTIONS, KEEP = "answers", (200, 1), (64,)
VALUES: dict[str, tuple[Any, ...]] = {
    "tau": (0.1, 0.3, 0.5, 0.7, 0.9),
    "gamma": (1.0, 5.0, 10.0, 50.0, 100.0),
    "kernel": ("s", "s_prime"),
}


def study(bench: Bench) -> Result:
    """Script, as the paper's text has it, with one setting changed at a time; the paper's values are marked."""
    from vlprune.methods import Script

    usual = Script(fusion="supplement")  # where the graph has a say
    cells: dict[str, Method] = {WHOLE: whole()}
    for keep in bench.keep:
        cells[f"defaults@{keep}"] = replace(usual, keep=keep)
        for name, values in VALUES.items():
            for value in values:
                if value != getattr(usual, name):
                    cells[f"{name}={value}@{keep}"] = replace(usual, **{"keep": keep, name: value})
    lines = bench.ask(cells)
    scores = {name: score(bench, found, lines[WHOLE]) for name, found in lines.items()}
    tables = []
    for keep in bench.keep:
        rows = []
        for name, values in VALUES.items():
            for value in values:
                default = value == getattr(usual, name)
                one = scores[f"defaults@{keep}" if default else f"{name}={value}@{keep}"]
                said = f"{value:g}" if isinstance(value, float) else value
                shares = ranged(one["accuracy"], one["interval"]), ranged(one["relative"], one["relative_interval"])
                rows.append([name, said + " (the paper's)" * default, *shares])
        columns = ["setting", "value", "right", "relative to all tokens"]
        tables.append(Table(f"Settings of Script, keeping {keep}", columns, rows, INTERVALS))
    return Result("Sensitivity", tables, {"sensitivity": _figure(bench, scores, usual)}, {"scores": scores})


def _figure(bench: Bench, scores: Any, usual: Any) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 3.4), layout="constrained")
    for axes, (name, values) in zip(figure.subplots(1, len(VALUES), sharey=True), VALUES.items()):
        for keep in bench.keep:
            found = [
                scores[f"defaults@{keep}" if value == getattr(usual, name) else f"{name}={value}@{keep}"]
                for value in values
            ]
            means = [100 * one["accuracy"] for one in found]
            ends = [[abs(mean - 100 * one["interval"][i]) for mean, one in zip(means, found)] for i in (0, 1)]
            axes.errorbar([str(value) for value in values], means, ends, marker="o", capsize=3, label=f"keep {keep}")
        axes.set(xlabel=name)
        axes.grid(alpha=0.25)
    figure.axes[0].set_ylabel("right answers, %")
    figure.axes[0].legend(fontsize=8)
    return figure

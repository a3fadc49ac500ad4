"""The numbers that the paper of Script publishes: its tables as data, and its averages computed again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

DATA = Path(__file__).with_name("paper.json")
ALL_TOKENS = "all tokens"  # the row of the model that is not pruned
AVERAGES = ("mean", "relative")  # columns that the paper computes from the others


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper. Rows are methods or settings at a budget, columns benchmarks or quantities.

    Names are ours where we have one: methods as in `vlprune methods`, benchmarks as lmms-eval calls them, the parts
    and settings of Script as in `vlprune study`; `columns` has the paper's word for each. `label` is the LaTeX label,
    `budget` the unit of budgets, `tokens` the budget of the model that is not pruned, `flops` the TFLOPs printed for a
    budget. Where a benchmark is no percentage, the paper's averages divide it by its number in `scale`.

    >>> table("llava-1.5-7b").value("script", "pope", 64)
    86.95
    """

    name: str
    label: str
    title: str
    model: str
    unit: str
    budget: str
    tokens: int
    flops: Mapping[float, float]
    scale: Mapping[str, float]
    columns: Mapping[str, str]
    values: Mapping[tuple[str, float], Mapping[str, float]]

    @property
    def rows(self) -> list[str]:
        """The rows' names, each once.

        >>> table("graph").rows
        ['exhaustive', 'bipartite', 'random tokens']
        """
        return list(dict.fromkeys(row for row, _ in self.values))

    @property
    def budgets(self) -> list[float]:
        """The budgets of pruned rows, largest first.

        >>> table("llava-next-7b").budgets
        [640, 320, 160]
        """
        return sorted({keep for row, keep in self.values if row != ALL_TOKENS}, reverse=True)

    @property
    def benchmarks(self) -> list[str]:
        """The columns that the table's averages are over; none in a table without averages."""
        return [name for name in self.columns if name not in AVERAGES] if "mean" in self.columns else []

    def row(self, row: str, keep: float | None = None) -> Mapping[str, float]:
        """All values of a row; `keep` may be left out where the row has one budget."""
        found = [values for (name, at), values in self.values.items() if name == row and keep in (None, at)]
        if len(found) != 1:
            known = ", ".join(f"{name} at {at}" for name, at in self.values)
            raise ValueError(f"row={row!r}, keep={keep}: the paper's table {self.name!r} has {known}.")
        return found[0]

    def value(self, row: str, column: str, keep: float | None = None) -> float:
        """The printed value of a row in a column.

        >>> table("graph").value("bipartite", "iou")
        0.93
        """
        if column not in self.columns:
            raise ValueError(f"column={column!r}: the paper's table {self.name!r} has {', '.join(self.columns)}.")
        return self.row(row, keep)[column]

    def mean(self, row: str, keep: float | None = None) -> float:
        """The mean over benchmarks by the paper's rule (MME by 20, OCRBench by 10), computed from the row's values.

        The rule is not written in the paper; it gives its printed means but for those of `misprinted_averages`.

        >>> f"{table('llava-1.5-7b').mean('visionzip', 192):.2f}"   # printed: 59.28
        '61.88'
        """
        if not self.benchmarks:
            raise ValueError(f"the paper's table {self.name!r} has no averages.")
        values = self.row(row, keep)
        return sum(values[name] / self.scale.get(name, 1) for name in self.benchmarks) / len(self.benchmarks)

    def relative(self, row: str, keep: float | None = None) -> float:
        """The mean of a row in % of that of all tokens, both computed from the rows' values.

        >>> f"{table('llava-next-7b').relative('script', 320):.2f}"   # printed: 97.78, and 97.09 in the text
        '97.73'
        """
        return 100 * self.mean(row, keep) / self.mean(ALL_TOKENS)


class Misprint(NamedTuple):
    """An average of the paper that does not follow from the values it is of."""

    table: str
    row: str
    keep: float
    column: str
    printed: float
    computed: float


@cache
def tables() -> Mapping[str, PaperTable]:
    """Every table of the paper that has numbers to compare with, by name.

    >>> ", ".join(tables())   # doctest: +NORMALIZE_WHITESPACE
    'llava-1.5-7b, llava-next-7b, llava-1.5-13b, llava-next-13b, video, internvl3-8b, efficiency, ablation, graph,
    sensitivity, overlap, significance'
    """
    found: dict[str, dict[str, Any]] = json.loads(DATA.read_text(encoding="utf-8"))
    made = {}
    for name, told in found.items():
        rows = told.pop("rows")
        told["values"] = {(row, keep): dict(zip(told["columns"], values, strict=True)) for row, keep, values in rows}
        told["flops"] = {float(keep): tera for keep, tera in told["flops"].items()}
        made[name] = PaperTable(name=name, **told)
    return made


def table(name: str) -> PaperTable:
    """The table of that name.

    >>> table("ablation").label
    'tab:ablation'
    """
    if name not in tables():
        raise ValueError(f"name={name!r}: no table of the paper; choose from {', '.join(tables())}.")
    return tables()[name]


def misprinted_averages(tolerance: float = 0.02) -> list[Misprint]:
    """Printed means and relative values that are off by more than `tolerance`, which allows for rounding and cutting.

    A mean is compared with the row's values; a relative value with the *printed* means, so that one wrong mean is not
    counted twice.

    >>> misprinted_averages(2)   # doctest: +ELLIPSIS
    [Misprint(table='llava-1.5-7b', row='visionzip', keep=192, column='mean', printed=59.28, computed=61.88...)]
    """
    found = []
    for one in tables().values():
        for (row, keep), values in one.values.items() if one.benchmarks else ():
            computed = {"mean": one.mean(row, keep)}
            if "relative" in values:
                computed["relative"] = 100 * values["mean"] / one.value(ALL_TOKENS, "mean")
            for column, value in computed.items():
                if abs(values[column] - value) > tolerance:
                    found.append(Misprint(one.name, row, keep, column, values[column], value))
    return found

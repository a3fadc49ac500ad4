"""The result of a study: tables, figures and the numbers behind them, and how they are saved."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlprune.media.outputs import replace_when_done, write_text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from vlprune.measure.fitted_table import FittedTable

#: A number, with a sign, a unit and an interval or without; "-" and nothing stand where there is none.
NUMBER = re.compile(r"[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?( ?[%×])?( \[[^\]]*\])?|-?")
PAPER_TITLE = "Beside the paper"  # of the table that sets a run against what the paper reports
WORDS_WIDTH = 20  # characters that a column of words may be squeezed to on a narrow terminal


@dataclass(frozen=True)
class ResultTable:
    """A title, columns and rows of text; `note` says how to read it.

    >>> print(ResultTable("Sums", ["a", "b"], [["x|y", "1"]], "All of them.").to_markdown())
    ### Sums
    <BLANKLINE>
    | a | b |
    | --- | ---: |
    | x\\|y | 1 |
    <BLANKLINE>
    All of them.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def is_numeric(self, column: int) -> bool:
        """Whether a column holds numbers, which are set to the right, and not words.

        >>> ResultTable("", ["a", "b"], [["1 %", "s"], ["", "2"]]).is_numeric(0)
        True
        """
        cells = [row[column] for row in self.rows]
        return any(cell.strip("-") for cell in cells) and all(NUMBER.fullmatch(cell) for cell in cells)

    def to_markdown(self) -> str:
        """The table as Markdown, under its title."""

        def line(words: Sequence[str]) -> str:
            return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"

        rule = line(["---:" if self.is_numeric(i) else "---" for i in range(len(self.columns))])
        lines = [f"### {self.title}", "", line(self.columns), rule, *map(line, self.rows)]
        return "\n".join([*lines, "", self.note] if self.note else lines)

    def to_table(self) -> FittedTable:
        """The table for rich to print: no number and no name is cut, whatever the terminal's width.

        What does not fit follows in further tables, each beginning with the columns that tell the rows apart.

        >>> ResultTable("", ["setting", "keep", "right"], [["a", "64", "9"], ["a", "16", "8"]]).to_table().keys
        2
        """
        from vlprune.measure.fitted_table import Column, FittedTable  # not above: `vlprune report` needs no torch

        columns = [
            Column(title, number=self.is_numeric(i), prose=0 if self.is_numeric(i) else self._words_width(i))
            for i, title in enumerate(self.columns)
        ]
        count, tellers = len(self.rows), range(1, len(columns))
        keys = next((k for k in tellers if len({tuple(row[:k]) for row in self.rows}) == count), 1)
        return FittedTable(columns, self.rows, self.title, self.note, keys=keys)

    def _words_width(self, column: int) -> int:
        """The width to which a column of words may be squeezed."""
        return min(WORDS_WIDTH, max((len(row[column]) for row in self.rows), default=0))


@dataclass
class StudyResult:
    """What a study returns.

    `figures` are by file name, without ending; `data` is what the tables were made of, for JSON. A `notice` stands
    above the tables, wherever they are shown.
    """

    title: str
    tables: list[ResultTable]
    figures: dict[str, Figure] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)
    notice: str = ""

    def save(self, folder: Path) -> None:
        """Write `result.json`, `result.md` and a PNG for each figure."""
        from vlprune.show.style import DPI  # not above: `vlprune report` needs no torch
        from vlprune.show.titles import fallback_fonts

        pictures = []
        for name, figure in self.figures.items():
            pictures.append(f"{name}.png")
            with fallback_fonts(), replace_when_done(folder / pictures[-1]) as half:
                figure.savefig(half, dpi=DPI)
        tables = [asdict(table) for table in self.tables]
        found = {"title": self.title, "notice": self.notice, "tables": tables, "figures": pictures, "data": self.data}
        parts = [f"# {self.title}", *([f"**{self.notice}**"] if self.notice else [])]
        parts += [*(t.to_markdown() for t in self.tables), *(f"![{p}]({p})" for p in pictures)]
        write_text(folder / "result.md", "\n\n".join(parts) + "\n")
        write_text(folder / "result.json", json.dumps(found, indent=1) + "\n")  # the last, as it says that all is there

"""The result of a study: tables, figures and the numbers behind them, and how they are saved."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import RenderableType

#: A number, with a sign, a unit and an interval or without; "-" and nothing stand where there is none.
NUMBER = re.compile(r"[+-]?\d[\d,]*(\.\d+)?(e[+-]?\d+)?( ?[%×])?( \[[^\]]*\])?|-?")
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

    def to_rich(self, width: int) -> list[RenderableType]:
        """The table for a terminal of that width, and its note.

        What does not fit follows in further tables, so that no number and no name is cut; each begins with the columns
        that tell the rows apart.
        """
        from rich.markup import escape
        from rich.table import Table
        from rich.text import Text

        found: list[RenderableType] = []
        for group in self._column_groups(width):
            table = Table(title=None if found else escape(self.title), title_justify="left")
            for i, wide in self._widths(group, width).items():
                side: Any = "right" if self.is_numeric(i) else "left"
                table.add_column(Text(self.columns[i]), justify=side, overflow="fold", width=wide)
            for row in self.rows:
                table.add_row(*(Text(row[i]) for i in group))
            found.append(table)
        return [*found, Text(self.note, style="dim italic")] if self.note else found

    def _column_groups(self, width: int) -> list[list[int]]:
        """The columns, in groups that are at most so wide; each group begins with those that tell the rows apart."""
        count = len(self.columns)
        keys = next((k for k in range(1, count) if len({tuple(row[:k]) for row in self.rows}) == len(self.rows)), 1)
        groups = [list(range(min(keys + 1, count)))]
        for i in range(keys + 1, count):
            if 1 + sum(self._least_width(j) + 3 for j in [*groups[-1], i]) > width:
                groups.append(list(range(keys)))
            groups[-1].append(i)
        return groups

    def _widths(self, group: Sequence[int], width: int) -> dict[int, int]:
        """The width of each column of a group: as much as its texts need, if there is room for it."""
        found = {i: self._least_width(i) for i in group}
        spare = width - 1 - sum(least + 3 for least in found.values())
        for i in group:
            longest = max(map(len, [self.columns[i], *(row[i] for row in self.rows)]))
            more = max(0, min(longest - found[i], spare))
            found[i], spare = found[i] + more, spare - more
        return found

    def _least_width(self, column: int) -> int:
        """How narrow a column may be: numbers and single words stay whole, several words may stand below each other."""
        cells = [row[column] for row in self.rows]
        longest_word = max((len(word) for text in [self.columns[column], *cells] for word in text.split()), default=1)
        longest = max(map(len, cells), default=0)
        return max(longest_word, longest if self.is_numeric(column) else min(longest, WORDS_WIDTH))


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
        pictures = []
        for name, figure in self.figures.items():
            pictures.append(f"{name}.png")
            figure.savefig(folder / pictures[-1], dpi=130)
        tables = [asdict(table) for table in self.tables]
        found = {"title": self.title, "notice": self.notice, "tables": tables, "figures": pictures, "data": self.data}
        (folder / "result.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        parts = [f"# {self.title}", *([f"**{self.notice}**"] if self.notice else [])]
        parts += [*(t.to_markdown() for t in self.tables), *(f"![{p}]({p})" for p in pictures)]
        (folder / "result.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")

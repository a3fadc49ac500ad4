"""The result of a study: tables, figures and the numbers behind them, and how they are saved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class ResultTable:
    """A title, columns and rows of text; `note` says how to read it.

    >>> print(ResultTable("Sums", ["a", "b"], [["1", "x|y"]], "All of them.").to_markdown())
    ### Sums
    <BLANKLINE>
    | a | b |
    | --- | ---: |
    | 1 | x\\|y |
    <BLANKLINE>
    All of them.
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""

    def to_markdown(self) -> str:
        """The table as Markdown, under its title."""

        def line(words: Sequence[str]) -> str:
            return "| " + " | ".join(word.replace("|", "\\|") for word in words) + " |"

        rule = line(["---"] + ["---:"] * (len(self.columns) - 1))
        lines = [f"### {self.title}", "", line(self.columns), rule, *map(line, self.rows)]
        return "\n".join([*lines, "", self.note] if self.note else lines)

    def to_rich(self) -> RichTable:
        """The table for the terminal."""
        from rich.markup import escape
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(title=escape(self.title), caption=escape(self.note) or None)
        table.title_justify = table.caption_justify = "left"
        for i, name in enumerate(self.columns):
            table.add_column(name, justify="right" if i else "left", overflow="fold")
        for row in self.rows:
            table.add_row(*map(Text, row))
        return table


@dataclass
class StudyResult:
    """What a study returns.

    `figures` are by file name, without ending; `data` is what the tables were made of, for JSON.
    """

    title: str
    tables: list[ResultTable]
    figures: dict[str, Figure] = field(default_factory=dict)
    data: dict[str, Any] = field(default_factory=dict)

    def save(self, folder: Path) -> None:
        """Write `result.json`, `result.md` and a PNG for each figure."""
        pictures = []
        for name, figure in self.figures.items():
            pictures.append(f"{name}.png")
            figure.savefig(folder / pictures[-1], dpi=130)
        tables = [
            {"title": t.title, "columns": list(t.columns), "rows": [list(row) for row in t.rows], "note": t.note}
            for t in self.tables
        ]
        found = {"title": self.title, "tables": tables, "figures": pictures, "data": self.data}
        (folder / "result.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        parts = [f"# {self.title}", *(t.to_markdown() for t in self.tables), *(f"![{p}]({p})" for p in pictures)]
        (folder / "result.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")

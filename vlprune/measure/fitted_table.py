"""Tables for the terminal that break no number and no name, however narrow it is."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

EDGES = 3  # characters that each column takes beside its width, and one more for the table
LONGEST_WORD = 45  # a longer one, which somebody else wrote, may be broken


@dataclass(frozen=True)
class Column:
    """A column's title; `number` if it is one, and `extra` if it is left out where there is no room.

    `prose`, if not 0, is the least width of text that may be broken between words; all else never is.
    """

    title: str
    number: bool = False
    extra: bool = False
    prose: int = 0


@dataclass(frozen=True)
class FittedTable:
    """Rows of cells under columns, printed by rich: all columns where they fit side by side, else those that matter.

    What does not fit even so goes on below, where the first `keys` columns, which tell the rows apart, stand again;
    these are never extra. `wide` keeps the extra columns; `lines` parts the rows by lines.

    >>> from rich.console import Console
    >>> columns = [Column("name"), Column("tokens", number=True), Column("seconds", number=True, extra=True)]
    >>> Console(width=24).print(FittedTable(columns, [["script", "64", "0.125"]], caption="of 576"))
    ┏━━━━━━━━┳━━━━━━━━┓
    ┃ name   ┃ tokens ┃
    ┡━━━━━━━━╇━━━━━━━━┩
    │ script │     64 │
    └────────┴────────┘
    of 576; with --wide
    also: seconds.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[str | Text]]
    title: str = ""
    caption: str = ""
    wide: bool = False
    lines: bool = False
    keys: int = 1

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        from rich.text import Text

        room = options.max_width
        used = [i for i in range(len(self.columns)) if i < self.keys or any(str(row[i]) for row in self.rows)]
        blocks = self._blocks(used, room)
        left_out: list[str] = []
        if len(blocks) > 1 and not self.wide:
            left_out = [self.columns[i].title for i in used if self.columns[i].extra]
            blocks = self._blocks([i for i in used if not self.columns[i].extra], room)
        if self.title:
            yield Text(_fill(self.title, room), "bold")
        for block in blocks if self.rows else ():  # where there are none, the caption says why
            yield self._draw(block, room)
        more = f"with --wide also: {', '.join(left_out)}." if left_out else ""
        caption = "; ".join(part for part in (self.caption.rstrip(".") if more else self.caption, more) if part)
        if caption:
            yield Text(_fill(caption, room), "dim")

    def _blocks(self, chosen: Sequence[int], room: int) -> list[list[int]]:
        """The columns in blocks that fit side by side, each beginning with the key columns."""
        keys, others = chosen[: self.keys], chosen[self.keys :]
        blocks = [[*keys]]
        for i in others:
            if len(blocks[-1]) > len(keys) and sum(self._least_width(j) + EDGES for j in [*blocks[-1], i]) + 1 > room:
                blocks.append([*keys])
            blocks[-1].append(i)
        return blocks

    def _least_width(self, i: int) -> int:
        """The least width of a column in which nothing is broken that must not be."""
        column = self.columns[i]
        if not column.prose:
            return max(_longest(column.title.split()), self._full_width(i, titled=False))
        words = [word for row in self.rows for word in str(row[i]).split()]
        return max(column.prose, _longest(column.title.split()), min(_longest(words), LONGEST_WORD))

    def _full_width(self, i: int, titled: bool = True) -> int:
        """The width that a column takes if nothing in it is broken."""
        lines = [line for row in self.rows for line in str(row[i]).splitlines()]
        return _longest([*lines, self.columns[i].title] if titled else lines)

    def _draw(self, block: Sequence[int], room: int) -> Table:
        """The table of these columns; prose shares the room that the others leave."""
        from rich.table import Table
        from rich.text import Text

        widths = {i: self._least_width(i) for i in block}
        spare = max(0, room - 1 - sum(width + EDGES for width in widths.values()))
        wanted = {i: max(0, self._full_width(i) - widths[i]) for i in block if self.columns[i].prose}
        scale = min(1.0, spare / max(1, sum(wanted.values())))
        table = Table(show_lines=self.lines)
        for i in block:
            column, width = self.columns[i], widths[i] + int(scale * wanted.get(i, 0))
            title = "\n".join(textwrap.wrap(column.title, width)) or column.title
            options: Any = {"justify": "right" if column.number else "left", "overflow": "fold"}
            table.add_column(Text(title), width=min(width, room - EDGES - 1), **options)
        for row in self.rows:
            cells = (row[i] for i in block)
            table.add_row(*(Text(cell) if isinstance(cell, str) else cell for cell in cells))
        return table


def _fill(text: str, room: int) -> str:
    """The text in lines of that width, broken at spaces alone."""
    return textwrap.fill(text, room, break_on_hyphens=False, break_long_words=False)


def _longest(texts: Sequence[str]) -> int:
    """Columns of a terminal that the longest of some texts takes."""
    from rich.cells import cell_len

    return max(map(cell_len, texts), default=0)

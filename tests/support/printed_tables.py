"""Tables as terminals of several widths show them."""

import io
from contextlib import contextmanager
from unittest import mock

from rich.console import Console

from vlprune.measure.fitted_table import FittedTable

WIDTHS = (60, 80, 200)


def printed(table, width):
    """What a terminal of so many columns shows."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


@contextmanager
def noted_tables():
    """A list of the tables that are printed within the `with`."""
    tables, draw = [], FittedTable.__rich_console__

    def noting(self, *arguments):
        tables.append(self)
        return draw(self, *arguments)

    with mock.patch.object(FittedTable, "__rich_console__", noting):
        yield tables


def check_nothing_is_cut(table, width, room_for_all=False):
    """Every cell without its spaces stands whole in its column; that of prose has all its words whole.

    `room_for_all` says that the table, extra columns and all, fits this width.
    """
    for wide in (False, True):
        object.__setattr__(table, "wide", wide)
        text = printed(table, width)
        assert max(map(len, text.splitlines())) <= width
        assert "…" not in text
        cells = {cell.strip() for line in text.splitlines() for cell in line.strip("│").split("│")}
        words = set(text.split())
        for i, column in enumerate(table.columns):
            if column.extra and not wide and not room_for_all:
                continue
            for row in table.rows:
                if column.prose:
                    assert set(str(row[i]).split()) <= words
                else:
                    assert {line.strip() for line in str(row[i]).splitlines()} <= cells

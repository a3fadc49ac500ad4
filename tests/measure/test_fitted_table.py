"""Tables at several widths, and what is repeated where they go on below."""

import io

import pytest
from rich.console import Console

from vlprune.measure.fitted_table import Column, FittedTable

COLUMNS = [
    Column("setting"),
    Column("keep", number=True),
    *(Column(f"share of kind {i}", number=True) for i in range(6)),
    Column("seconds of all", number=True, extra=True),
    Column("why it cannot run", prose=16),
]
ROWS = [
    [name, str(keep), *["99.4 [98.7, 99.8]"] * 6, "1,234.5", "no attention was given"]
    for name in "ab"
    for keep in (64, 16)
]


def printed(table, width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()


def test_without_rows_there_is_no_table():
    assert printed(FittedTable(COLUMNS, [], "Title", "No rows: nowhere."), 80) == "Title\nNo rows: nowhere.\n"


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("keys", [1, 2])
def test_key_columns_stand_in_every_block(width, keys):
    text = printed(FittedTable(COLUMNS, ROWS, "Title", "Note.", keys=keys), width)
    lines = [[cell.strip() for cell in line.strip("│").split("│")] for line in text.splitlines() if line[:1] == "│"]
    assert max(map(len, text.splitlines())) <= width
    blocks = text.count("┏")
    assert (blocks == 1) == (width == 200)
    starts = [cells[:keys] for cells in lines if cells[0]]
    assert starts == [row[:keys] for row in ROWS] * blocks
    assert sum(cells.count("99.4 [98.7, 99.8]") for cells in lines) == 6 * len(ROWS)
    assert ("with --wide also: seconds of all." in text) == (width < 200)
    assert ("1,234.5" in text) == (width == 200)
    assert "1,234.5" in printed(FittedTable(COLUMNS, ROWS, wide=True, keys=keys), width)

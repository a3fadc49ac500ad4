"""The efficiency table as it is printed."""

import io
import math

import pytest
from rich.console import Console

from vlprune.measure.efficiency_report import MAIN_TITLES, EfficiencyReport, Row, Spread


def made(method, seconds, selection=0.0):
    spread = Spread(seconds, seconds, seconds)
    chosen, first = Spread(selection, selection, selection), seconds + selection
    return Row(
        method,
        False,
        576,
        640,
        10**12,
        2 * 10**12,
        spread,
        chosen,
        chosen,
        spread,
        Spread(first, first, first),
        None,
        2**25,
        None,
    )


ABOUT = dict.fromkeys(("model", "device", "dtype", "batch", "new_tokens", "repeats", "torch", "transformers"), "x")


@pytest.mark.parametrize("width", [60, 80, 200])
def test_no_number_and_no_name_is_cut(width):
    rows = [made("all tokens", 12.345), made("script, keep=64 per tile", 1.2345, 0.0123)]
    report = EfficiencyReport(rows, ABOUT)
    titles, *cells = report.cells()
    for wide in (False, True):
        console = Console(width=width, record=True, file=io.StringIO())
        console.print(report.to_table(wide=wide))
        text = console.export_text()
        lines = text.splitlines()
        assert max(map(len, lines)) <= width
        assert "…" not in text
        found = {cell.strip() for line in lines for cell in line.strip("│").split("│")}
        for title, cell in ((title, cell) for row in cells for title, cell in zip(titles, row)):
            if wide or width == 200 or title in MAIN_TITLES:
                assert set(cell.splitlines()) <= found
        assert ("with --wide also:" in " ".join(text.split())) == (width < 200 and not wide)


def test_what_matters_comes_first():
    table = EfficiencyReport([made("all tokens", 0.09), made("script", 0.02)], ABOUT).to_table()
    shown = [column.title for column in table.columns if not column.extra]
    assert shown == MAIN_TITLES == [column.title for column in table.columns[: len(shown)]]
    assert shown[1:4] == ["visual tokens", "first token faster", "KV MiB"]


def test_the_ratio_is_that_of_the_first_token():
    report = EfficiencyReport([made("all tokens", 0.09), made("script", 0.02, 0.01)], ABOUT)
    titles, *rows = report.cells()
    whole, pruned = (dict(zip(titles, cells)) for cells in rows)
    assert (whole["first token faster"], pruned["first token faster"]) == ("", "3.00×")
    assert pruned["first token ms"].startswith("30.0")
    assert (whole["selection ms"], pruned["selection ms"]) == ("", "10.0\n10.0–10.0")
    assert (whole["MACs (paper)"], whole["FLOPs (prefill)"], whole["KV MiB"]) == ("2 T", "1 T", "32")
    assert "peak MiB" not in titles  # nobody knows it
    table = [line for line in report.to_markdown().splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1


def test_spread():
    spread = Spread.of([float(i) for i in range(1, 102)])
    assert (spread.low, spread.median, spread.high) == (26, 51, 76)
    assert math.isclose(Spread.of([1.0, 2.0]).median, 1.5)

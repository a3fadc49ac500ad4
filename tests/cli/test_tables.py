"""The tables that commands print."""

import io

import pytest
from rich.console import Console

from vlprune import get_method, list_methods
from vlprune.cli.tables import answer_table, cost_table, needs_table, settings_table

INSIDE = [name for name in list_methods() if hasattr(get_method(name), "cut_schedule")]


def test_answers_and_costs():
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(answer_table([("what ?", "red"), ("how ?", "3")], [("red", "blue"), ("3", "")], ("all", "few")))
    console.print(cost_table([("all", {"flops": 3e12}), ("few", {"kv_bytes": 2048, "total": 0.0015})]))
    text = console.export_text()
    for piece in ("✓ red", "✗ blue", "✗ (nothing)", "3 T", "2.05 kB", "1.5", " - ", "two per multiply-add"):
        assert piece in text


def rows(width):
    console = Console(width=width, record=True, file=io.StringIO())
    methods = [get_method(name, keep=64) for name in list_methods()]
    console.print(needs_table(methods, n=576, layers=32))
    console.print(settings_table(methods))
    return console.export_text()


@pytest.mark.parametrize("width", [100, 120])
def test_the_tables_fit(width):
    text = rows(width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    for name in list_methods():
        assert text.count(f" {name} ") >= 2


def test_what_methods_need_and_do():
    told = {}
    for line in rows(120).splitlines():
        cells = [cell.strip() for cell in line.strip("│ ").split("│")]
        if len(cells) == 8:
            told[cells[0]] = cells[1:]
    assert sorted(told) == list_methods()
    for name, (asks, tower, llm, merges, reorders, entering, average) in told.items():
        method = get_method(name, keep=64)
        assert (asks == "yes", tower == "yes") == (method.needs_query, method.needs_attention)
        assert (llm == "yes") == (asks == "by LLM") == (name in INSIDE)
        assert (merges == "yes") == (name in ("average_pool", "trim", "visionzip", "sparsevlm"))
        assert (reorders == "yes") == method.reorders
        assert int(entering) == (576 if name in INSIDE else 64)
        assert (float(average) > 64) == (name in INSIDE)

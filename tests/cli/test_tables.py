"""The tables that commands print."""

from types import SimpleNamespace

import pytest

from tests.support.printed_tables import WIDTHS, check_nothing_is_cut, printed
from vlprune import get_method, list_methods
from vlprune.cli.tables import (
    answer_table,
    compare_table,
    cost_table,
    families_table,
    needs_table,
    settings_table,
)
from vlprune.models import list_families

INSIDE = [name for name in list_methods() if hasattr(get_method(name), "cut_schedule")]
METHODS = [get_method(name, keep=64) for name in list_methods()]
COSTS = {"flops": 3.82e12, "kv_bytes": 123456789, "total": 12.345, "prefill": 1.5, "vision": 0.0321, "decode": 4.321}


def compared():
    def result(name, reason=None):
        latency = SimpleNamespace(total=1234.567, vision=0.5, selection=0.0123)
        cost = SimpleNamespace(latency=latency, kv_bytes=987654321) if reason is None else None
        counts = SimpleNamespace(name=name, answer="a small red star", cost=cost, reason=reason, records=[1])
        counts.accounting, counts.prunes_in_llm = (2880, 1234.5), name in INSIDE
        return counts

    why = "it needs the attention inside the vision tower, which this model did not give."
    return compare_table([*map(result, list_methods()), result("of_another", why)], 0.5)


TABLES = {
    "answers": lambda: answer_table(
        [("what digit is on the orange circle?", "4"), ("what shape is the yellow thing with a 6?", "triangle")],
        [("4", "12,345"), ("triangle", "")],
        ("all 576", "64 of 576"),
    ),
    "costs": lambda: cost_table([("all 10,816", COSTS), ("1,024 of 10,816", {**COSTS, "total": 1.5})]),
    "by formula": lambda: cost_table([("all 576, by formula", {"flops": 3e12}), ("64 of 576", COSTS)]),
    "compare": compared,
    "needs": lambda: needs_table(METHODS, n=576, layers=32),
    "settings": lambda: settings_table(METHODS),
    "families": lambda: families_table(list_families()),
}


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", TABLES)
def test_no_number_and_no_name_is_cut(name, width):
    check_nothing_is_cut(TABLES[name](), width, room_for_all=width == 200)


def test_what_matters_comes_first():
    lines = printed(TABLES["costs"](), 80).splitlines()
    cells = [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]
    assert cells[0] == ["all 10,816", "-", "123 MB", "3.82 T", "12,345", "1,500"]
    assert cells[1][:2] == ["1,024 of 10,816", "8.2×"]
    assert "with --wide also: question ms" not in "".join(lines)  # nobody measured it
    assert "with --wide also: vision ms, decode ms." in " ".join(" ".join(lines).split())
    assert "--wide" not in printed(TABLES["costs"](), 200)
    shown = [column.title for column in compared().columns if not column.extra]
    assert shown == ["method", "answer", "tokens entering", "faster", "KV cache", "total ms"]


def test_answers_and_costs():
    text = printed(answer_table([("what ?", "red"), ("how ?", "3")], [("red", "blue"), ("3", "")], ("all", "few")), 120)
    text += printed(cost_table([("all", {"flops": 3e12}), ("few", {"kv_bytes": 2048, "total": 0.0015})]), 120)
    for piece in ("✓ red", "✗ blue", "✗ (nothing)", "3 T", "2.05 kB", "1.5", " - ", "two per multiply-add"):
        assert piece in text
    assert "faster" not in text  # the first row was not timed


def test_what_methods_need_and_do():
    told = {}
    for line in printed(TABLES["needs"](), 120).splitlines():
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

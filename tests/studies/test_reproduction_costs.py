"""The costs that `vlprune reproduce efficiency` measures, with the pocket model."""

import pytest

from vlprune.evaluation.load_model import load_model
from vlprune.measure import LLMShape, paper_macs
from vlprune.studies import reproduction_costs
from vlprune.studies.efficiency import TITLES
from vlprune.studies.paper import table
from vlprune.studies.reproduction import make_plan
from vlprune.studies.reproduction_costs import cells_by_row, costs_table, count_calls, measure_costs

ROWS = ["fastv", "divprune", "script", "script without DPP"]


@pytest.fixture(scope="module")
def measured():
    plan, ticks, loaded = make_plan("efficiency", rows=ROWS), [], load_model("pocket", None, "cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reproduction_costs, "REPEATS", 1)
        patch.setattr(reproduction_costs, "NEW_TOKENS", 2)
        f1 = {"all tokens": 86.25, "script@320": 85.5}
        costs = measure_costs(plan, loaded, f1, refused=["divprune@320"], tick=lambda: ticks.append(1))
        expected = count_calls(plan, ["divprune@320"])
    return costs, len(ticks), expected, loaded


def test_the_rows_and_what_they_cost(measured):
    costs, ticks, expected, loaded = measured
    by_name = {row.method: row for row in costs.report.rows}
    assert list(by_name) == ["all tokens", "fastv", "script", "script without DPP"]
    assert ticks == expected
    assert (by_name["all tokens"].visual_tokens, by_name["script"].visual_tokens) == (576, 64)
    assert by_name["script"].macs == paper_macs(LLMShape.of(loaded.model), 64)
    assert by_name["script"].kv_bytes < by_name["all tokens"].kv_bytes / 4
    assert by_name["script"].question.median > 0


def test_the_table_has_the_paper_s_figures_below_ours(measured):
    found = costs_table(measured[0])
    assert list(found.columns) == list(TITLES)
    assert [row[0] for row in found.rows] == [
        *("all tokens", "  paper", "fastv", "  paper", "script", "  paper", "  without DPP", "  paper"),
    ]
    right = TITLES.index("right")
    assert [row[right] for row in found.rows[:6]] == ["86.2", "86.8", "-", "49.5", "85.5", "86.7"]
    assert found.rows[1][1] == f"{table('efficiency').value('all tokens', 'tflops'):.1f}"
    assert "right: F1 on POPE in the table above." in found.note


def test_other_budgets_are_named_by_them():
    plan = make_plan("efficiency", rows=["script"], keeps=[320, 160])
    assert list(cells_by_row(plan)) == ["all tokens", "script", "script@160"]

"""The order of methods beside the paper's: 1 for its own order, -1 for the reverse, and p by counting orders."""

import pytest

from vlprune.studies.paper import table
from vlprune.studies.rank_correlation import exact_p, rank_correlation

METHODS = ["fastv", "trim", "visionzip", "divprune", "sparsevlm", "script"]


def run(score, keeps=(192, 64, 16), methods=METHODS, tokens=576):
    scores = {"all tokens": {"entering": tokens, "macro": 1.0}}
    return {"scores": scores | {f"{m}@{k}": {"macro": score(m, k)} for m in methods for k in keeps}}


def test_the_paper_s_own_order_has_rho_1_and_the_reverse_minus_1():
    paper = table("llava-1.5-7b")
    (own,) = rank_correlation(run(lambda method, keep: paper.mean(method, keep)))
    found = {(row[0], row[1]): row for row in own.rows}
    assert [keep for name, keep in found if name == "llava-1.5-7b"] == ["192", "64", "16"]
    for keep in ("192", "64", "16"):
        row = found["llava-1.5-7b", keep]
        assert row[2] == row[3]
        assert row[4:] == ["+1.00", "0.0028"]  # 2 of 720 orders
    assert found["llava-1.5-7b", "16"][2].split(", ")[0] == "script"
    (reverse,) = rank_correlation(run(lambda method, keep: -paper.mean(method, keep)))
    assert {row[4] for row in reverse.rows if row[0] == "llava-1.5-7b"} == {"-1.00"}


def test_the_ablation_s_parts_are_compared_by_our_methods_at_16():
    paper = table("ablation")
    parts = {"random": "none (random)", "graph_only": "GSP", "relevance_top_k": "QCRS", "script": "GSP + QCRS + DPP"}
    data = run(lambda method, keep: paper.mean(parts[method], 16), keeps=(16,), methods=list(parts))
    (found,) = rank_correlation(data)
    (row,) = found.rows
    assert (row[0], row[1], row[4]) == ("ablation", "16", "+1.00")


def test_budgets_that_the_paper_lacks_are_named_and_too_few_methods_give_nothing():
    (found,) = rank_correlation(run(lambda method, keep: len(method) + keep, keeps=(64, 48)))
    assert "The paper has nothing at 48." in found.note
    assert rank_correlation(run(lambda method, keep: 1.0, methods=["script", "trim"])) == []
    assert rank_correlation(run(lambda method, keep: 1.0, tokens=16)) == []


def test_p_counts_orders():
    assert exact_p([1, 2, 3, 4], [1, 2, 3, 4]) == pytest.approx(2 / 24)
    assert exact_p([1, 2, 3], [2, 1, 3]) == 1.0  # rho 0.5: every order is as far from 0

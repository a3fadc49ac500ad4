"""The plans of `vlprune reproduce` are the paper's tables; scores and intervals against slow, obvious ones."""

import math

import numpy as np
import pytest

from vlprune.budget import Budget
from vlprune.errors import UserError
from vlprune.methods.in_llm import InLLMMethod
from vlprune.studies.paper import ALL_TOKENS, table
from vlprune.studies.reproduction import SETUPS, make_plan
from vlprune.studies.reproduction_table import Score, beside_paper_table, column_score, mean_score, paired_table


@pytest.mark.parametrize("name", SETUPS)
def test_a_plan_has_the_paper_s_methods_budgets_and_benchmarks(name):
    plan = make_plan(name)
    paper = table(SETUPS[name].paper)
    rows = {(cell.row, cell.keep) for cell in plan.cells if cell.method is not None}
    assert rows == {pair for pair in paper.values if pair[0] != ALL_TOKENS}
    assert plan.cells[0].name == ALL_TOKENS
    assert set(plan.columns) == set(paper.benchmarks or {"efficiency": ["pope"], "significance": ["mme"]}[name])
    for cell in plan.cells[1:]:
        parts = [paper.tokens // SETUPS[name].tiles] * (SETUPS[name].tiles * (SETUPS[name].frames or 1))
        kind = "video" if SETUPS[name].frames else "image"
        kept = Budget.of(cell.method.keep)
        if not isinstance(cell.method, InLLMMethod):
            shares = kept.shares(kind, parts)
            assert (shares if isinstance(shares, int) else sum(shares)) == cell.keep * (SETUPS[name].frames or 1)
            assert cell.row == cell.method.name or cell.row == "script without DPP"


def test_methods_inside_the_llm_have_the_budget_on_average_where_they_can():
    for cell in make_plan("llava-1.5-7b", rows=["fastv", "sparsevlm"]).cells[1:]:
        average = cell.method.accounting(576, layers=32).layer_average
        assert average == pytest.approx(cell.keep, abs=1) if cell.keep >= 64 else cell.method.keep == cell.keep


def test_a_part_of_a_table_and_other_methods():
    plan = make_plan("llava-1.5-7b", rows=["script", "script_plus"], keeps=[64, 48], columns=["pope"], limit=10)
    assert [cell.name for cell in plan.cells] == [
        *("all tokens", "script@64", "script_plus@64", "script@48", "script_plus@48"),
    ]
    assert plan.answers == 50
    for wrong in ({"rows": ["skript"]}, {"columns": ["chartqa"]}):
        with pytest.raises(UserError, match=r"skript|chartqa"):
            make_plan("llava-1.5-7b", **wrong)
    with pytest.raises(UserError, match=r"llava-2: no table that can be run; choose from llava-1.5-7b"):
        make_plan("llava-2")


def test_scores_and_intervals():
    plan, dice = make_plan("llava-1.5-7b"), np.random.default_rng(0)
    right = dice.integers(0, 2, 400).astype(float).tolist()
    found = column_score(plan, "gqa", {"exact_match": np.mean(right)}, [{"exact_match": one} for one in right])
    assert found.value == pytest.approx(100 * np.mean(right))
    means = [100 * dice.choice(right, 400).mean() for _ in range(4000)]
    assert found.half == pytest.approx(np.subtract(*np.percentile(means, [97.5, 2.5])) / 2, rel=0.05)


def test_the_interval_of_mme_by_a_bootstrap_over_images():
    plan, dice = make_plan("llava-1.5-7b"), np.random.default_rng(1)
    pairs = {category: dice.integers(0, 2, (60, 2)) for category in ("count", "color")}
    samples = [
        {"mme_perception_score": {"category": category, "question_id": str(i), "score": float(score)}}
        for category, images in pairs.items()
        for i, pair in enumerate(images)
        for score in pair
    ]

    def points(images):
        return 100 * images.mean() + 100 * (images.sum(1) == 2).mean()

    total = sum(map(points, pairs.values()))
    found = column_score(plan, "mme", {"mme_perception_score": total}, samples)
    drawn = [sum(points(one[dice.integers(0, 60, 60)]) for one in pairs.values()) for _ in range(4000)]
    assert found.value == total
    assert found.half == pytest.approx(np.subtract(*np.percentile(drawn, [97.5, 2.5])) / 2, rel=0.06)


def test_parts_of_video_benchmarks():
    plan = make_plan("video")
    samples = [
        {"videomme_perception_score": {"score": score}, "doc": {"duration": duration}}
        for score, duration in [(1.0, "short"), (0.0, "short"), (1.0, "long")]
    ]
    assert column_score(plan, "videomme_short", {}, samples).value == 50
    assert column_score(plan, "videomme_long", {}, samples).value == 100


def test_the_paper_s_own_numbers_come_out_as_they_are_printed():
    plan = make_plan("llava-1.5-7b")
    scores = {
        cell.name: {column: Score(plan.paper.value(cell.row, column, cell.keep), 0.1) for column in plan.columns}
        for cell in plan.cells
    }
    assert mean_score(plan, scores["script@64"]).value == pytest.approx(plan.paper.mean("script", 64))
    found = beside_paper_table(plan, scores)
    assert not any("≠" in text for row in found.rows for text in row)
    scores["script@64"]["gqa"] = Score(60.0, 0.5)  # the paper has 59.28
    row = next(row for row in beside_paper_table(plan, scores).rows if row[:2] == ["script", "64"])
    assert row[2] == "60.0 ± 0.5 (59.3) ≠"


def test_pairs_of_questions():
    plan = make_plan("significance", rows=["script", "fastv"])
    answers = {"script@160": [1.0] * 30 + [0.0] * 10, "fastv@160": [1.0] * 20 + [0.0] * 20}
    samples = {name: [{"mme_perception_score": {"score": one}} for one in found] for name, found in answers.items()}
    (row,) = paired_table(plan, samples).rows
    assert row[:3] == ["fastv", "160", "+25.0"]
    assert float(row[3]) < 0.01
    assert row[5] == "1e-43"
    assert math.isfinite(float(row[4]))


def test_a_mean_over_a_column_without_an_interval_has_none():
    plan = make_plan("llava-1.5-7b", columns=["gqa", "mme"])
    known = {"gqa": Score(60.0, 0.6), "mme": Score(1400.0, 16.0)}
    assert mean_score(plan, known) == Score(65.0, pytest.approx(0.5))
    assert mean_score(plan, {**known, "mme": Score(1400.0, None)}) == Score(65.0, None)

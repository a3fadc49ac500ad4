"""The plans of `vlprune reproduce` are the paper's tables; scores and intervals against slow, obvious ones."""

import math
from pathlib import Path

import numpy as np
import pytest

from vlprune.budget import Budget
from vlprune.errors import UserError
from vlprune.methods.in_llm import InLLMMethod
from vlprune.studies.paper import ALL_TOKENS, table
from vlprune.studies.reproduction import BENCHMARKS, SETUPS, make_plan
from vlprune.studies.reproduction_table import Score, beside_paper_table, column_score, mean_score, paired_table
from vlprune.studies.reproduction_time import GPUS, SPEEDS, answer_seconds

DOCS = Path(__file__).parents[2] / "docs"
IMAGES = "gqa mmbench_en_dev mmbench_cn_dev mme pope scienceqa_img vqav2_val textvqa_val vizwiz_vqa_val mmvet"
VIDEOS = "mlvu_dev mvbench longvideobench_val_v videomme"
INTERNVL = "ai2d textvqa_val chartqa ocrbench hallusion_bench_image mme mmbench_en_dev mmbench_cn_dev"
SIX = "fastv trim visionzip divprune sparsevlm script"
SEVEN = ["fastv", "pyramiddrop", "sparsevlm", "visionzip", "divprune", "script", "script without DPP"]
#: The paper's tables, read from its LaTeX: model, tokens in all, methods, budgets, benchmarks.
PAPER = {
    "llava-1.5-7b": ("llava-1.5-7b", 576, SIX.split(), [192, 128, 64, 32, 16], IMAGES),
    "llava-1.5-13b": ("llava-1.5-13b", 576, SIX.split(), [128, 64, 32], IMAGES),
    "llava-next-7b": ("v1.6-vicuna-7b", 2880, SIX.split(), [640, 320, 160], IMAGES),
    "llava-next-13b": ("v1.6-vicuna-13b", 2880, SIX.split(), [640, 320, 160], IMAGES),
    "video": (None, 169, ["fastv", "divprune", "sparsevlm", "script"], [64, 32, 16], VIDEOS),
    "internvl3": ("InternVL3-8B", 1280, ["fastv", "divprune", "script"], [256, 128], INTERNVL),
    "efficiency": ("v1.6-vicuna-7b", 2880, SEVEN, [320], "pope"),
    "significance": ("v1.6-vicuna-7b", 2880, SIX.split(), [160], "mme"),
}


@pytest.mark.parametrize("name", SETUPS)
def test_a_plan_is_what_the_paper_s_latex_has(name):
    model, tokens, methods, budgets, tasks = PAPER[name]
    plan = make_plan(name)
    assert (plan.setup.model or "").find(model or "") >= 0
    assert plan.cells[0].keep == tokens
    assert {(cell.row, cell.keep) for cell in plan.cells[1:]} == {(row, keep) for row in methods for keep in budgets}
    assert len(plan.cells) == 1 + len(methods) * len(budgets)
    assert set(plan.tasks) == set(tasks.split())


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


def test_speeds_are_those_that_were_measured():
    """Read from the table in docs/performance.md: an eager row and the row of CUDA graphs below it."""
    lines = (DOCS / "performance.md").read_text(encoding="utf-8").splitlines()
    for model, speed in SPEEDS.items():
        at = next(i for i, line in enumerate(lines) if line.startswith(f"| {model}, ") and "| eager |" in line)
        rows = [line.strip().strip("|").split("|")[-4:] for line in lines[at : at + 2]]
        cells = [[float(cell.split(",")[0]) for cell in row] for row in rows]  # of the pruned ones Script's comes first
        found = [pair for row in cells for pair in (row[:2], row[2:])]
        assert found == [list(pair) for pair in (speed.first, speed.step, speed.first_graphs, speed.step_graphs)]


def test_hours_by_hand():
    plan = make_plan("significance", rows=["script"])  # MME: 2,374 answers of two tokens, each with two methods
    assert plan.hours() == pytest.approx(2374 * (0.104 + 0.0232 + 0.0457 + 0.0234) / 3600)
    slow = 81.3 * 989 / 312 + 23.2 + 19.8 * 989 / 312 + 23.4
    assert plan.hours("A100") == pytest.approx(2374 * slow / 1000 / 3600)
    assert make_plan("llava-next-13b", limit=1).hours() == pytest.approx(
        make_plan("llava-next-7b", limit=1).hours() * 13 / 7
    )
    for gpu in GPUS:
        assert answer_seconds("LLaVA-1.5-7B", gpu, 9, pruned=True) >= (37.7 + 8 * 22.9) / 1000


@pytest.mark.parametrize("name", SETUPS)
def test_the_documented_hours_are_those_that_are_estimated(name):
    """docs/benchmarks.md: table, label, rows, answers, hours on each GPU, and those without VQAv2 on an H200."""
    text = (DOCS / "benchmarks.md").read_text(encoding="utf-8")
    cells = next(line.strip("| ").split("|") for line in text.splitlines() if line.startswith(f"| `{name}` |"))
    plan = make_plan(name)
    found = [cell.strip() for cell in cells[2:]]
    fewer = [column for column in plan.columns if column != "vqav2_val"]
    without = f"{make_plan(name, columns=fewer).hours():,.1f}" if len(fewer) < len(plan.columns) else ""
    hours = [f"{plan.hours(gpu):,.1f}" for gpu in GPUS]
    assert found == [f"{len(plan.cells)}", f"{plan.answers:,}", *hours, *([without] if without else [])]


def test_the_documented_benchmarks_are_those_of_the_tables():
    lines = (DOCS / "benchmarks.md").read_text(encoding="utf-8").splitlines()
    for name, one in BENCHMARKS.items():
        if one.part_of is None:
            assert any(f"`{name}`" in line and f"| `{one.data}` | {one.questions:,}" in line for line in lines), name


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


def test_ocrbench_is_the_mean_over_answers():
    """lmms-eval's own sum goes on from method to method, and divides by 1,000 however many were asked."""
    plan = make_plan("internvl3")
    samples = [{"ocrbench_accuracy": {"score": score}} for score in (1, 0, 1, 1)]
    assert column_score(plan, "ocrbench", {"ocrbench_accuracy": 0.9}, samples).value == 750


def test_the_note_says_which_splits_are_not_the_paper_s():
    for name, said in [("llava-1.5-7b", "VQA-V2 of test-dev, VizWiz of test;"), ("internvl3", None)]:
        plan = make_plan(name)
        note = beside_paper_table(plan, {}).note
        assert said in note if said else "split" not in note


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

"""ChartQA's own test files through lmms-eval, end to end: drawn charts, or its human questions where they lie here.

    VLPRUNE_CHARTQA="ChartQA Dataset/test" VLPRUNE_CHARTQA_QUESTIONS=1250 make test-lmms-eval

asks so many (64 if not said) of the 1,250 in that folder, as github.com/vis-nlp/ChartQA has it.
"""

import json
import os
from pathlib import Path

import pytest
from PIL import Image, ImageDraw

from tests.integrations.lmms_eval.local_tasks import write_task
from tests.integrations.lmms_eval.test_model import run

CHARTQA = """process_results: !function {module}.chartqa_process_results
metric_list:
  - {{metric: relaxed_overall, aggregation: mean, higher_is_better: true}}
  - {{metric: relaxed_human_split, aggregation: mean, higher_is_better: true}}"""
REAL = os.environ.get("VLPRUNE_CHARTQA")


def ask(folder, questions, tmp_path, capsys):
    """The scores and answers of the first questions in a folder of ChartQA; none may be skipped."""
    told = json.loads((folder / "test_human.json").read_text(encoding="utf-8"))[:questions]
    rows = [
        {
            "question": one["query"],
            "answer": one["label"],
            "type": "human_test",
            "image": {"bytes": (folder / "png" / one["imgname"]).read_bytes(), "path": None},
        }
        for one in told
    ]
    write_task(tmp_path, "chartqa", "chartqa", rows, CHARTQA)
    results, answers = run(tmp_path, ["chartqa"], method="script", keep=64, batch_size=8)
    said = capsys.readouterr().out
    assert "could not be asked" not in said
    assert len(answers["chartqa"]) == len(rows)
    return results["chartqa"], answers["chartqa"]


def test_charts_of_many_sizes(tmp_path, capsys):
    """Wide and tall charts, questions with quotes, percent signs and numbers."""
    folder = tmp_path / "test"
    (folder / "png").mkdir(parents=True)
    told = []
    for i, size in enumerate([(850, 600), (310, 900), (64, 48), (1200, 200)]):
        picture = Image.new("RGB", size, "white")
        for bar in range(4):
            height = size[1] * (bar + 1) // 5
            box = [bar * size[0] // 4, size[1] - height, bar * size[0] // 4 + size[0] // 5, size[1]]
            ImageDraw.Draw(picture).rectangle(box, fill=("red", "blue", "green", "gray")[bar])
        picture.convert("P" if i == 2 else "RGB").save(folder / "png" / f"{i}.png")
        for query, label in [("What's the \"highest\" bar's value?", "80%"), ("How many bars are red?", "1")]:
            told.append({"imgname": f"{i}.png", "query": query, "label": label})
    (folder / "test_human.json").write_text(json.dumps(told), encoding="utf-8")
    results, _ = ask(folder, 8, tmp_path, capsys)
    assert 0 <= results["relaxed_overall,none"] <= 1
    assert results["relaxed_overall,none"] == results["relaxed_human_split,none"]


@pytest.mark.skipif(REAL is None, reason="VLPRUNE_CHARTQA names no folder of ChartQA")
def test_human_questions(tmp_path, capsys):
    results, answers = ask(Path(REAL), int(os.environ.get("VLPRUNE_CHARTQA_QUESTIONS", 64)), tmp_path, capsys)
    with capsys.disabled():
        print(f"\nChartQA: {len(answers)} asked, {100 * results['relaxed_overall,none']:.1f} % right")

"""Scores of several methods in one process: each has its own, where lmms-eval keeps something from call to call."""

import json

import pytest

from tests.integrations.lmms_eval.local_tasks import CHOICES, write_task
from vlprune.errors import UserError
from vlprune.integrations.lmms_eval.answer_file import AnswerFile
from vlprune.integrations.lmms_eval.table_run import TableRun, load_tasks
from vlprune.studies.reproduction import make_plan
from vlprune.studies.reproduction_table import column_score

OCRBENCH = """process_results: !function {module}.ocrbench_process_results
metric_list:
  - metric: ocrbench_accuracy
    aggregation: !function {module}.ocrbench_aggregate_accuracy
    higher_is_better: true"""
HALLUSION = """process_results: !function {module}.hb_process_results
metric_list:
  - {{metric: aAcc, aggregation: !function {module}.hb_aggregation_result_aAcc, higher_is_better: true}}
  - {{metric: qAcc, aggregation: !function {module}.hb_aggregation_result_qAcc, higher_is_better: true}}
  - {{metric: fAcc, aggregation: !function {module}.hb_aggregation_result_fAcc, higher_is_better: true}}"""


def png():
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.new("RGB", (8, 8)).save(file, "PNG")
    return {"bytes": file.getvalue(), "path": None}


def answer(run, cell, words):
    """Write the answers of a cell, as a run does."""
    requests = [one for found in run._requests.values() for one in found]
    file = AnswerFile(run._file(cell))
    file.append({"key": one.key, "answer": word, "tokens": 1} for one, word in zip(requests, words, strict=True))


def ocrbench_row():
    return {
        "question_type": "Doc-oriented VQA",
        "dataset": "x",
        "question": "what?",
        "answer": ["right"],
        "image": png(),
    }


def test_ocrbench_does_not_add_up_from_method_to_method(tmp_path):
    write_task(tmp_path, "ocrbench", "ocrbench", [ocrbench_row()] * 4, OCRBENCH)
    run = TableRun(None, tmp_path / "run", ["ocrbench"], task_folder=tmp_path)
    answer(run, "all tokens", ["right", "right", "right", "wrong"])
    answer(run, "script@128", ["right", "wrong", "wrong", "wrong"])
    plan = make_plan("internvl3", rows=["script"], columns=["ocrbench"])
    scores = [run.score(cell)["ocrbench"] for cell in ("all tokens", "script@128")]
    assert [column_score(plan, "ocrbench", one.metrics, one.samples).value for one in scores] == [750, 250]


def test_a_judge_is_asked_about_each_method(tmp_path, monkeypatch):
    """HallusionBench keeps what the judge said in a file, and reads it again."""
    from lmms_eval.tasks.hallusion_bench import utils

    class Reply:
        def __init__(self, said):
            self.said = said

        def raise_for_status(self):
            pass

        def json(self):
            return {"choices": [{"message": {"content": self.said}}]}

    def judge(url, headers, json, timeout):
        said = json["messages"][0]["content"].rpartition("Prediction answer:")[2].partition("\n")[0]
        return Reply("correct" if said == "right" else "incorrect")

    monkeypatch.setattr(utils.requests, "post", judge)
    rows = [
        {"category": category, "subcategory": "math", "set_id": str(i), "figure_id": str(i), "question_id": "0"}
        | {"question": "what?", "gt_answer": "1", "gt_answer_details": "right", "visual_input": "1", "image": png()}
        for i, category in enumerate(["VD", "VD", "VS", "VS"])
    ]
    write_task(tmp_path, "hallusion_bench_image", "hallusion_bench", rows, HALLUSION)
    functions = "from lmms_eval.tasks.hallusion_bench.evaluate_hb import *\n"
    functions += "hallusion_bench_doc_to_visual, hallusion_bench_doc_to_text = hb_doc_to_visual, hb_doc_to_text\n"
    (tmp_path / "hallusion_bench_functions.py").write_text(functions)
    run = TableRun(None, tmp_path / "run", ["hallusion_bench_image"], task_folder=tmp_path)
    answer(run, "all tokens", ["right", "right", "right", "wrong"])
    answer(run, "script@128", ["right", "wrong", "wrong", "wrong"])
    plan = make_plan("internvl3", rows=["script"], columns=["hallusion_bench_image"])
    scores = [run.score(cell)["hallusion_bench_image"] for cell in ("all tokens", "script@128")]
    found = [column_score(plan, "hallusion_bench_image", one.metrics, one.samples).value for one in scores]
    assert found == [75, 25]


def test_what_another_process_could_not_ask_is_counted(tmp_path):
    write_task(tmp_path, "ocrbench", "ocrbench", [ocrbench_row()] * 2, OCRBENCH)
    run = TableRun(None, tmp_path / "run", ["ocrbench"], task_folder=tmp_path)
    answer(run, "all tokens", ["right", "right"])
    file = run.folder / "answers" / "all_tokens.0.jsonl"
    file.write_text(json.dumps(json.loads(file.read_text().splitlines()[0])) + "\n")
    run.score("all tokens")
    assert [one.reason for one in run.skipped["all tokens"]] == [
        "another process could not ask it, and says why in its log"
    ]


def test_a_task_that_compares_likelihoods_is_refused(tmp_path):
    row = {"question_id": "0", "question": "is it?", "answer": "Yes", "image": png()}
    write_task(tmp_path, "pope", "pope", [row], CHOICES, output="multiple_choice")
    with pytest.raises(UserError, match=r"--tasks pope: its output_type is multiple_choice; a table needs generate_un"):
        load_tasks(["pope"], tmp_path)

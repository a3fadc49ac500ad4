"""`vlprune reproduce` through the real lmms-eval: the paper's tasks on drawn scenes, with the pocket model."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from tests.integrations.lmms_eval.local_tasks import write_tasks
from vlprune.cli.app import main

OPTIONS = ["--model", "pocket", "--methods", "divprune", "--keep", "64", "--tasks", "pope,gqa,mme", "--device", "cpu"]


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """The command, without its folder."""
    folder = write_tasks(tmp_path_factory.mktemp("official"), official=True)
    return ["reproduce", "llava-1.5-7b", *OPTIONS, "--batch", "4", "--task-folder", str(folder)]


def result_of(folder):
    """The tables and numbers of a run, and its answers by cell and key."""
    found = json.loads((folder / "result.json").read_text())
    answers = {}
    for file in (folder / "answers").glob("*.jsonl"):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        answers.setdefault(file.name.rsplit(".", 2)[0], {}).update({line["key"]: line["answer"] for line in lines})
    return found["tables"], found["data"], answers


def run(words, folder):
    with pytest.raises(SystemExit) as ended:
        main([*words, "--out", str(folder)])
    assert ended.value.code == 0
    return result_of(folder)


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory):
    return run(words, tmp_path_factory.mktemp("runs") / "whole")


def test_the_table(whole):
    (table, *_), data, answers = whole
    assert table["columns"] == ["method", "keep", "GQA", "MME", "POPE", "mean", "relative"]
    assert [row[:2] for row in table["rows"]] == [["all tokens", "576"], ["divprune", "64"]]
    scores, metrics = data["scores"]["divprune@64"], data["metrics"]["divprune@64"]
    assert scores["pope"]["value"] == pytest.approx(100 * metrics["pope"]["pope_accuracy"])
    assert scores["mme"]["value"] == pytest.approx(metrics["mme"]["mme_perception_score"])
    assert "(57.7)" in table["rows"][1][2]  # the paper's GQA of DivPrune at 64
    right = 100 * (scores["gqa"]["value"] + scores["mme"]["value"] / 20 + scores["pope"]["value"]) / 3
    assert float(table["rows"][1][5].split()[0]) == pytest.approx(right / 100, abs=0.06)
    assert {len(found) for found in answers.values()} == {16 + 24 + 16}
    assert data["skipped"] == {"all tokens": 0, "divprune@64": 0}


def test_efficiency_has_f1_and_costs(words, tmp_path):
    task_folder = words[words.index("--task-folder") + 1]
    few = [
        "--model",
        "pocket",
        "--methods",
        "divprune",
        "--device",
        "cpu",
        "--limit",
        "8",
        "--task-folder",
        task_folder,
    ]
    (scores, costs, *_), data, _ = run(["reproduce", "efficiency", *few], tmp_path / "costs")
    assert [row[0] for row in scores["rows"]] == ["all tokens", "divprune"]
    assert [row[0] for row in costs["rows"]] == ["all tokens", "  paper", "divprune", "  paper"]
    ours, paper = (dict(zip(costs["columns"], row)) for row in costs["rows"][2:])
    assert paper["prefill ms"] == "38 (6.6×)"
    assert float(ours["right"]) == pytest.approx(data["scores"]["divprune@320"]["pope"]["value"], abs=0.06)
    assert data["costs"]["rows"][1]["visual_tokens"] == 64
    assert data["costs"]["rows"][1]["kv_bytes"] < data["costs"]["rows"][0]["kv_bytes"]


def start(words, folder):
    """The command in a process of its own."""
    command = [sys.executable, "-m", "vlprune", *words, "--out", str(folder)]
    threads = {"OMP_NUM_THREADS": "1"} if "--gpus" in words else {}  # for two processes on two cores
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": ":".join(sys.path), **threads})


def test_a_killed_run_goes_on(words, whole, tmp_path):
    folder = tmp_path / "killed"
    process = start(words, folder)
    file = folder / "answers" / "all_tokens.0.jsonl"
    while not file.is_file() or file.read_text().count("\n") < 8:
        assert process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    before = file.read_text().splitlines()
    assert len(before) < 56
    assert run(words, folder) == whole
    assert file.read_text().splitlines()[: len(before) - 1] == before[:-1]  # nothing was asked again


def test_two_processes_share_the_questions(words, whole, tmp_path):
    folder = tmp_path / "shared"
    process = start([*words, "--gpus", "2"], folder)
    assert process.wait(timeout=900) == 0
    tables, data, answers = result_of(folder)
    assert sorted(file.name for file in (folder / "answers").iterdir()) == [
        *("all_tokens.0.jsonl", "all_tokens.1.jsonl"),
        *("divprune@64.0.jsonl", "divprune@64.1.jsonl"),
    ]
    assert {cell: set(found) for cell, found in answers.items()} == {cell: set(one) for cell, one in whole[2].items()}
    assert tables[0]["columns"] == whole[0][0]["columns"]
    assert data["scores"]["all tokens"] == whole[1]["scores"]["all tokens"]


def test_a_method_that_cannot_run_is_left_out_by_all_processes(words, tmp_path):
    """FastV, which cannot come down to 48 tokens on average over so few layers."""
    task_folder = words[words.index("--task-folder") + 1]
    few = ["--model", "pocket", "--methods", "fastv", "--keep", "48", "--tasks", "pope", "--limit", "4"]
    few += ["--device", "cpu", "--task-folder", task_folder, "--gpus", "2"]
    assert start(["reproduce", "llava-1.5-7b", *few], tmp_path / "refused").wait(timeout=900) == 0
    tables, _, _ = result_of(tmp_path / "refused")
    assert [row[0] for row in tables[0]["rows"]] == ["all tokens"]
    (refused,) = [one["rows"] for one in tables if one["title"] == "Could not run"]
    assert refused[0][0] == "fastv@48"
    assert "fastv cannot go below 96.8 for 576 tokens in an LLM of 6 layers" in refused[0][1]

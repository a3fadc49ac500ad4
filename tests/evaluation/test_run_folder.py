"""Run folders: they go on where they stopped, and refuse to mix what does not belong together."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from vlprune import Script
from vlprune.cli.runs import RunOptions
from vlprune.errors import UserError
from vlprune.evaluation.run_folder import RunFolder, command_line, default_folder, read_manifest


def test_a_line_that_was_cut_off_is_dropped(tmp_path):
    run = RunFolder(tmp_path / "run", "eval", {})
    run.append_answers("script@64", [{"q": 0}, {"q": 1}])
    (file,) = (tmp_path / "run" / "answers").iterdir()
    file.write_text(file.read_text() + '{"q": 2, "ans')
    again = RunFolder(tmp_path / "run", "eval", {})
    assert again.read_answers("script@64") == [{"q": 0}, {"q": 1}]
    again.append_answers("script@64", [{"q": 2}])
    assert again.read_answers("script@64") == [{"q": 0}, {"q": 1}, {"q": 2}]


def test_only_a_torn_line(tmp_path):
    run = RunFolder(tmp_path / "run", "eval", {})
    run._answers_file("a").write_text('{"q"')
    assert run.read_answers("a") == []
    run.append_answers("a", [{"q": 5}])
    assert run.read_answers("a") == [{"q": 5}]


@pytest.mark.parametrize(
    ("command", "settings", "says"),
    [
        ("eval", {"split": "test", "seed": 1}, "seed=0, not 1"),
        ("eval", {"split": "validation", "seed": 0}, "split=test, not validation"),
        ("eval", {"split": "test", "seed": 0, "data": "x"}, "data=None, not x"),
        ("study graph", {"split": "test", "seed": 0}, "command=eval, not study graph"),
    ],
)
def test_other_settings_are_refused(tmp_path, command, settings, says):
    RunFolder(tmp_path / "run", "eval", {"split": "test", "seed": 0})
    with pytest.raises(UserError, match=says):
        RunFolder(tmp_path / "run", command, settings)


def test_a_method_that_means_something_else_now_is_refused(tmp_path):
    RunFolder(tmp_path / "run", "eval", {}).save_methods({"script@64": Script(keep=64)})
    again = RunFolder(tmp_path / "run", "eval", {})
    again.save_methods({"script@64": Script(keep=64), "script@16": Script(keep=16)})
    with pytest.raises(UserError, match=r"tau=0\.3.*not .*tau=0\.2"):
        again.save_methods({"script@64": Script(keep=64, tau=0.2)})


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="holds no run"):
        RunFolder(tmp_path, "eval", {})
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_no_run_and_a_broken_one(tmp_path):
    with pytest.raises(UserError, match="holds no run"):
        read_manifest(tmp_path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        read_manifest(tmp_path)


def test_cells_with_odd_names_have_files_of_their_own(tmp_path):
    run = RunFolder(tmp_path / "run", "eval", {})
    run.append_answers("script:tau=0.2@0.1", [{"q": 1}])
    run.append_answers("GSP + DPP@16", [{"q": 2}])
    assert run.read_answers("script:tau=0.2@0.1") == [{"q": 1}]
    assert run.read_answers("GSP + DPP@16") == [{"q": 2}]


def test_the_manifest_says_how_to_make_it_again(tmp_path):
    run = RunFolder(
        tmp_path / "run",
        "eval",
        {"model": "pocket", "data": "a b.jsonl", "digest": "x", "clip": None},
        {"keep": "64,16"},
    )
    run.save_device(torch.device("cpu"))
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert command_line(manifest) == "vlprune eval --model pocket --data 'a b.jsonl' --keep 64,16"
    assert {"torch", "transformers", "device"} <= set(manifest["machine"])


def test_no_two_ways_of_asking_share_a_default_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "q.jsonl").write_text("{}")
    (tmp_path / "c.jsonl").write_text("{}")
    usual = RunOptions("pocket", None, "test", 6, "exact", 0, None, 16, "cpu", None, None)
    data = replace(usual, data=Path("a/q.jsonl"))
    asked = [
        *(("eval", usual), ("eval", replace(usual, questions=7)), ("eval", replace(usual, split="validation"))),
        *(("eval", replace(usual, seed=1)), ("eval", replace(usual, dual_encoder="some/clip")), ("eval", data)),
        *(("eval", replace(data, model="some/model")), ("eval", replace(data, match="contains"))),
        *(("eval", replace(data, max_new_tokens=3)), ("eval", replace(data, data=Path("b/q.jsonl")))),
        *(("study graph", usual), ("study graph", data), ("study overlap", usual), ("study overlap", data)),
        *(("study redundancy", replace(usual, data=Path("a"))), ("study redundancy", replace(usual, data=Path(".")))),
    ]
    folders = []
    for command, options in asked:
        for small in (None,) if command == "eval" else (False, True):
            settings = options.settings() | ({} if small is None else {"small": small})
            folders.append(default_folder(command, settings))
            RunFolder(folders[-1], command, settings)
            assert default_folder(command, settings) == folders[-1]  # it goes on with its own
    assert len(set(folders)) == len(folders)
    assert folders[-1].name == f"redundancy-{tmp_path.name}-small"
    (tmp_path / "a" / "q.jsonl").write_text("{ }")
    assert default_folder("eval", data.settings()) not in folders  # the file holds other questions now


def test_default_folders_do_not_collide(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    drawn, own = {"questions": 6}, {"data": "my/photos.jsonl"}
    asked = [("eval", drawn), ("eval", {"questions": 7}), ("eval", own), ("study graph", {"small": True})]
    folders = []
    for command, settings in asked:
        folders.append(default_folder(command, settings))
        RunFolder(folders[-1], command, settings)
    assert [folder.as_posix() for folder in folders] == [
        "runs/eval",
        "runs/eval-2",
        "runs/eval-photos",
        "runs/graph-small",
    ]
    assert [default_folder(*one) for one in asked] == folders  # each goes on with its own


def test_a_run_that_was_killed_before_its_manifest_was_written(tmp_path, monkeypatch):
    """What it left is nobody's work: the same command begins there again, and so does one without --out."""
    monkeypatch.chdir(tmp_path)
    left = tmp_path / "runs" / "eval"
    (left / "answers").mkdir(parents=True)
    (left / ".manifest.part.json").write_text('{"settings": {"comm')
    assert default_folder("eval", {}) == Path("runs/eval")
    RunFolder(left, "eval", {}).append_answers("a", [{"q": 0}])
    assert RunFolder(left, "eval", {}).read_answers("a") == [{"q": 0}]
    other = tmp_path / "other"
    (other / "answers").mkdir(parents=True)
    (other / "answers" / "mine.jsonl").write_text("{}")
    with pytest.raises(UserError, match="holds no run"):
        RunFolder(other, "eval", {})


@pytest.mark.parametrize("name", ["../../escape", "/etc/passwd", "..", "a/../b", "x\x00y", "C:\\x", "\u202egnp"])
def test_no_name_of_a_cell_leaves_the_folder(tmp_path, name):
    run = RunFolder(tmp_path / "run", "eval", {})
    run.append_answers(name, [{"q": 1}])
    assert run.read_answers(name) == [{"q": 1}]
    (file,) = (tmp_path / "run" / "answers").iterdir()
    assert file.resolve().parent == (tmp_path / "run" / "answers").resolve()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]

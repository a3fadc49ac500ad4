"""The study of photographs from the command line, with a tiny tower and drawn photographs."""

import json
from pathlib import Path

import pytest

from tests.support.evaluation_runs import read_lines
from tests.support.photo_folders import save_tower, write_yolo_folder


@pytest.fixture
def words(tmp_path):
    tower, data = save_tower("registers", tmp_path / "tower"), write_yolo_folder(tmp_path / "data", 2)
    return ("study", "coverage", "--tower", tower, "--data", data, "--keep", "9,4", "--out", "run")


def test_tower_and_data(program, monkeypatch, words):
    monkeypatch.setattr("vlprune.studies.coverage.PICTURES", 1)  # each shows all methods, and takes a second
    code, out, err = program(*words)
    assert code == 0, err
    found = json.loads(Path("run/result.json").read_text())
    data = found["data"]
    assert data["photographs"] == 2
    assert {"random@9", "uniform_grid@4", "script@9", "script, wrong question@9"} <= set(data["scores"])
    lines = read_lines("run", "uniform_grid@4")
    seen = [value for line in lines for value in line["asked"]]
    assert data["scores"]["uniform_grid@4"]["asked"]["mean"] == pytest.approx(sum(seen) / len(seen))
    assert data["scores"]["uniform_grid@4"]["asked"]["count"] == len(seen)
    low, high = data["scores"]["uniform_grid@4"]["asked"]["interval"]
    assert 0 <= low < data["scores"]["uniform_grid@4"]["asked"]["mean"] < high <= 1
    assert set(data["auc"]) >= {"low redundancy", "attention in the tower", "relevance"}
    assert "kept-1.png" in found["figures"]
    assert "Regions of stuff" not in out
    before = {path: path.read_bytes() for path in Path("run/answers").iterdir()}
    assert program(*words)[0] == 0  # goes on, with nothing left to do
    assert {path: path.read_bytes() for path in Path("run/answers").iterdir()} == before
    assert json.loads(Path("run/result.json").read_text())["data"] == data


def test_methods_of_ones_own(program, words):
    """With settings and presets, as in every other command."""
    spec = "script:fusion=filter,rho=0.5,divprune"
    code, _, err = program(*words, "--methods", spec)
    assert code == 0, err
    scores = json.loads(Path("run/result.json").read_text())["data"]["scores"]
    named = [f"{name}@{keep}" for name in ("script:fusion=filter,rho=0.5", "divprune") for keep in (9, 4)]
    wrong = [f"script:fusion=filter,rho=0.5, wrong question@{keep}" for keep in (9, 4)]
    assert list(scores) == [*named, *wrong]
    assert read_lines("run", named[0]) != read_lines("run", named[2])
    assert program(*words)[0] == 2  # all methods are another run
    assert "choose another folder" in program(*words)[2]


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--methods", "fastv"), "--methods fastv: it chooses inside the LLM, and here is none."),
        (("--methods", "random:keep=9"), "--methods random:keep=9: it keeps 9, but --keep asks for 4 too."),
        (("--methods", "skript"), "did you mean 'script'?"),
        (("--keep", "36"), "--keep 36: the tower gives 36 tokens, so choose fewer."),
        (("--pixels", "50"), "--pixels 50: the patches of"),
        (("--model", "other"), "--model other: study coverage looks at a vision tower alone: say --tower."),
    ],
)
def test_refusals(program, words, more, sentence):
    code, _, err = program(*words, *more)
    assert code == 2
    assert sentence in err


def test_options_of_a_tower_go_with_no_other_study(program):
    code, _, err = program("study", "graph", "--pixels", 224)
    assert (code, err.splitlines()[-1]) == (
        2,
        "vlprune: --pixels 224: it goes with study coverage; study graph takes --model.",
    )

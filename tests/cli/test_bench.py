"""`vlprune bench`: its table and files, and what it refuses."""

import json

import pytest

from tests.support.narrow_architectures import narrow_architectures
from vlprune.cli.bench import ARCHITECTURE_NAMES, PAPER_NAMES


def test_the_command(program, tmp_path):
    figures, table = tmp_path / "bench.json", tmp_path / "bench.md"
    command = ("bench", "--methods", "script,random", "--keep", "64,0.5", "--repeats", "1", "--new", "2")
    code, out, err = program(*command, "--device", "cpu", "--out", figures, "--out", table)
    assert code == 0, err
    found = json.loads(figures.read_text())
    assert [row["visual_tokens"] for row in found["rows"]] == [576, 64, 288, 64, 288]
    assert {"device", "torch", "transformers", "vlprune", "conventions", "repeats"} <= set(found)
    assert "script, keep=64" in table.read_text()
    assert "random, keep=0.5" in out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--methods", "scrip"], "did you mean 'script'"),
        (["--methods", ","], "--methods is empty"),
        (["--keep", "0"], "at least one token"),
        (["--keep", "600", "--repeats", "1", "--new", "1", "--device", "cpu"], "only 576 visual tokens"),
        (["--keep", "4/frame", "--repeats", "1", "--new", "1", "--device", "cpu"], "per_tile"),
        (["--random-weights", "--model", "llava-7b"], f"choose from {', '.join(ARCHITECTURE_NAMES)}."),
        (["--out", "/no/such/folder/x.json"], "there is no folder"),
        (["--paper", "llava-7b"], "--paper llava-7b: choose from llava-1.5-7b, llava-1.5-13b, llava-next-7b"),
        (["--paper", "llava-next-7b", "--keep", "32"], "has its own model, methods and budgets"),
        (["--accuracy", "run"], "--accuracy run goes with --paper."),
        (["--out", "x.txt"], "--out x.txt: its name must end in .json or .md."),
    ],
)
def test_refusals(program, options, said):
    code, _, err = program("bench", *options)
    assert code == 2
    error = err.removeprefix("vlprune: loading pocket ...\n")
    assert said in error
    assert error.count("\n") == 1


def test_json_is_printed(run, checkpoint, tmp_path):
    bench = ("bench", "--model", checkpoint, "--keep", "4", "--repeats", "1", "--new", "2", "--json")
    code, out, err = run(*bench, "--out", "figures.json")
    assert (code, err) == (0, "")
    assert [row["visual_tokens"] for row in json.loads(out)["rows"]] == [16, 4]
    assert (tmp_path / "figures.json").read_text() == out


def test_the_papers_table(run, monkeypatch, tmp_path):
    monkeypatch.setattr("vlprune.studies.efficiency.IN_LLM", ("pyramiddrop",))
    monkeypatch.setattr("vlprune.studies.efficiency.BEFORE_LLM", ("script",))
    with narrow_architectures():
        code, out, _ = run(
            *("bench", "--paper", "llava-1.5-7b", "--text", "4", "--new", "2", "--repeats", "1", "--device", "cpu"),
            *("--out", "table.md", "--out", "figures.json"),
        )
    assert code == 0
    assert "choosing" in out
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [row["method"] for row in figures["rows"]] == ["all tokens", "pyramiddrop", "script"]
    assert "| script | " in (tmp_path / "table.md").read_text()


def test_architectures_are_those_that_there_are(run):
    from vlprune.measure.architectures import ARCHITECTURES
    from vlprune.studies.efficiency import TILES

    assert tuple(one.name for one in ARCHITECTURES) == ARCHITECTURE_NAMES
    assert tuple(TILES) == PAPER_NAMES
    told = run("bench", "--help")[1].replace("\n", "").replace(" ", "")
    assert ",".join(ARCHITECTURE_NAMES) in told

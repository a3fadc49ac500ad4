"""`vlprune reproduce`: the plan of every table, and refusals. Runs are tested inside lmms-eval (tests/integrations)."""

import json
from importlib.util import find_spec

import pytest

from vlprune.cli.app import main
from vlprune.studies.paper import ALL_TOKENS, table
from vlprune.studies.reproduction import SETUPS


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(["reproduce", *words])
    printed = capsys.readouterr()
    return ended.value.code, printed.out, printed.err


@pytest.mark.parametrize("name", SETUPS)
def test_a_dry_run_prints_the_paper_s_methods_budgets_and_tasks(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, said, _ = run(capsys, name, "--dry-run")
    assert code == 0
    assert max(map(len, said.splitlines())) <= 80
    paper = table(SETUPS[name].paper)
    for row in paper.rows:
        budgets = [f"{keep:g}" for other, keep in paper.values if other == row]
        assert any(row in line and ", ".join(budgets) in line for line in said.splitlines())
    told = json.loads(run(capsys, name, "--dry-run", "--json")[1])
    assert {(cell["method"], cell["keep"]) for cell in told["cells"]} >= set(paper.values) - {
        (ALL_TOKENS, paper.tokens)
    }
    assert told["answers"] == len(told["cells"]) * sum(told["questions"].values())
    assert f"{told['answers']:,} answers" in said
    assert "estimated, not measured" in " ".join(said.split())


def test_a_part_of_a_table(capsys):
    words = ["--methods", "script,script_plus", "--keep", "64", "--tasks", "pope,mme", "--limit", "50"]
    told = json.loads(run(capsys, "llava-1.5-7b", "--dry-run", "--json", *words)[1])
    assert [cell["method"] for cell in told["cells"]] == [ALL_TOKENS, "script", "script_plus"]
    assert told["questions"] == {"mme": 50, "pope": 50}


REFUSED = {
    "no table": (["llava-2", "--dry-run"], "llava-2: no table that can be run; choose from llava-1.5-7b"),
    "no method": (["video", "--methods", "skript", "--dry-run"], "--methods skript: choose from "),
    "no task": (["video", "--tasks", "pope", "--dry-run"], "--tasks pope: the table video has mlvu_dev"),
    "no budget": (["video", "--keep", "few", "--dry-run"], "--keep few: numbers of tokens as the table has them"),
    "no checkpoint": (["video"], "video: transformers has no checkpoint of LLaVA-Video-7B of its own: name one by"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name, capsys):
    words, sentence = REFUSED[name]
    code, _, told = run(capsys, *words)
    assert code == 2
    assert told.strip().splitlines()[-1].startswith(f"vlprune: {sentence}")


@pytest.mark.skipif(find_spec("lmms_eval") is not None, reason="for an environment without lmms-eval")
def test_without_lmms_eval(capsys, tmp_path):
    code, _, told = run(capsys, "llava-1.5-7b", "--model", "pocket", "--out", str(tmp_path / "run"))
    assert code == 2
    assert "lmms-eval is not installed: pip install 'vlprune[lmms-eval]'" in told

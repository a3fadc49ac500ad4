"""`vlprune eval`: tables that agree with the answers, runs that go on, refusals that teach."""

import json
from pathlib import Path

import pytest

from tests.support.evaluation_runs import read_lines, write_questions
from vlprune.evaluation import answers
from vlprune.evaluation.questions import pocket_questions
from vlprune.evaluation.stats import mcnemar, wilson_interval
from vlprune.methods import list_methods

ALL = list_methods()


@pytest.fixture
def forbidden(monkeypatch):
    def ask(*arguments):
        raise AssertionError("nothing is left to ask")

    return lambda: monkeypatch.setattr(answers, "_answer_batch", ask)


def test_every_method_is_scored_and_the_oracle(program, forbidden):
    words = ("eval", "--questions", 1, "--keep", 16, "--split", "validation", "--batch", 8, "--out", "run")
    code, out, err = program(*words)
    assert code == 0, err
    found = json.loads(Path("run/result.json").read_text())
    assert list(found["data"]["scores"]) == ["all tokens", *(f"{name}@16" for name in ALL), "oracle@16"]
    truth = {question.number: question for question in pocket_questions("validation", 1)}
    for cell, score in found["data"]["scores"].items():
        lines = read_lines("run", cell.replace(" ", "_"))
        right = sum(line["answer"] == truth[line["q"]].answers[0] for line in lines)
        assert sorted(line["q"] for line in lines) == sorted(truth)
        assert sum(score["right"].values()) == right
        assert score["accuracy"] == right / 6
        assert score["interval"] == list(wilson_interval(right, 6))
    assert found["data"]["scores"]["script@16"]["entering"] == 16
    check_outputs_beside_all_tokens(found)
    rows = found["tables"][0]["rows"]
    assert len(rows) == len(found["data"]["scores"])
    assert "oracle" in out
    ends = [row[i].partition("[")[2].strip("]").split(", ") for row in rows[1:] for i in (4, 5)]
    assert all(float(low) < float(high) for low, high in ends)
    right = {cell: [line["right"] for line in read_lines("run", cell)] for cell in ("script@16", "random@16")}
    assert found["data"]["p"]["script"]["random@16"] == mcnemar(*right.values())[2]
    assert {row[0]: row[-1] for row in rows}["random"] == f"{mcnemar(*right.values())[2]:.2g}"
    text = Path("run/result.md").read_text()
    assert all(f"| {row[0]} |" in text for row in rows)
    assert Path("run/accuracy.png").read_bytes()[:4] == b"\x89PNG"
    forbidden()
    assert program(*words)[0] == 0
    code, out, _ = program(*words, "--json")
    assert json.loads(out)["data"] == found["data"]


def check_outputs_beside_all_tokens(found):
    """The divergence and the agreement of each cell, and the mean over kinds, from the answers in the run's folder."""
    whole = {line["q"]: line for line in read_lines("run", "all_tokens")}
    for cell, score in found["data"]["scores"].items():
        lines = read_lines("run", cell.replace(" ", "_"))
        assert score["kl"] == pytest.approx(sum(line["kl"] for line in lines) / 6)
        assert score["agreement"] == sum(line["answer"] == whole[line["q"]]["answer"] for line in lines) / 6
        shares = [score["right"][kind] / asked for kind, asked in score["asked"].items()]
        assert score["macro"] == pytest.approx(sum(shares) / len(shares))
    assert (found["data"]["scores"]["all tokens"]["kl"], found["data"]["scores"]["all tokens"]["agreement"]) == (0, 1)
    assert found["data"]["scores"]["random@16"]["kl"] > 0
    titles = [table["title"] for table in found["tables"]]
    table = found["tables"][titles.index("Outputs beside those with all tokens")]
    assert [row[0] for row in table["rows"]] == [*ALL, "oracle"]
    assert found["tables"][1]["columns"][-3:] == ["all", "mean of kinds", "relative"]


def test_more_budgets_and_variants_join_a_run(program, forbidden):
    words = ("eval", "--questions", 1, "--batch", 8, "--out", "run", "--keep")
    assert program(*words, 16, "--methods", "random")[0] == 0
    assert program(*words, "16,0.01", "--methods", "random,script:fusion=filter:rho=0.3")[0] == 0
    found = json.loads(Path("run/result.json").read_text())["data"]["scores"]
    assert found["script:fusion=filter:rho=0.3@0.01"]["entering"] == 6
    assert "rho=0.3" in json.loads(Path("run/manifest.json").read_text())["methods"]["script:fusion=filter:rho=0.3@16"]
    forbidden()
    assert program(*words, "0.01", "--methods", "random")[0] == 0
    code, _, err = program("eval", "--questions", 2, "--out", "run", "--methods", "random")
    assert code == 2
    assert err.splitlines()[-1].startswith("vlprune: --out run holds a run with questions=1, not 2")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--methods", "skript"], "--methods skript: no such method; did you mean 'script'?"),
        (["--methods", "script:taw=1"], "--methods script:taw=1: script has no such setting; did you mean 'tau'?"),
        (["--methods", ","], "--methods is empty"),
        (["--keep", "many"], "--keep many: pass a number of tokens (64), a ratio (0.1)"),
        (["--keep", ","], "--keep is empty"),
        (["--split", "train"], "--split train: choose from validation, test."),
        (["--match", "fuzzy"], "--match fuzzy: choose from exact, contains."),
        (["--model", "some/where"], "--model some/where knows nothing of the pocket world: say --data"),
        (["--data", "none.jsonl"], "--data none.jsonl cannot be read"),
    ],
)
def test_refusals(program, words, says):
    code, out, err = program("eval", "--questions", 1, *words)
    assert (code, out) == (2, "")
    (said,) = [line for line in err.splitlines() if ": loading " not in line]
    assert says in said
    assert not Path("runs").exists()


def test_a_file_of_one_s_own_scores_as_the_same_scenes_do(program, tmp_path):
    data = write_questions(tmp_path)
    some = ("--methods", "script,uniform_grid", "--keep", 16)
    assert program("eval", "--split", "validation", "--questions", 1, *some, "--out", "drawn")[0] == 0
    code, _, err = program("eval", "--data", data, *some, "--out", "filed")
    assert code == 0, err
    drawn, filed = (
        json.loads(Path(f"{name}/result.json").read_text())["data"]["scores"] for name in ("drawn", "filed")
    )
    assert filed == drawn
    data.write_text(data.read_text() + "\n" + data.read_text().splitlines()[0])
    code, _, err = program("eval", "--data", data, *some, "--out", "filed")
    assert code == 2
    assert "digest=" in err


@pytest.mark.parametrize("kind", ["checkpoint", "untemplated"])
def test_another_model_on_a_file(program, tmp_path, request, kind):
    data = write_questions(tmp_path)
    words = ("--data", data, "--model", request.getfixturevalue(kind), "--keep", "4,99", "--max-new-tokens", 3)
    code, _, err = program("eval", *words, "--match", "contains", "--out", "run")
    assert code == 0, err
    assert err.count("no chat template") == (kind == "untemplated")
    found = json.loads(Path("run/result.json").read_text())
    scored, refused = found["data"]["scores"], json.loads(Path("run/manifest.json").read_text())["refused"]
    assert {cell.removesuffix("@4") for cell in scored} == {"all tokens", *ALL}
    assert set(refused) == {f"{name}@99" for name in ALL}
    assert "only 16 visual tokens" in refused["script@99"]
    assert found["tables"][-1]["title"] == "Could not run"


def test_no_method_can_run(program):
    code, _, err = program("eval", "--questions", 1, "--methods", "random", "--keep", 600, "--out", "run")
    assert code == 2
    assert err.splitlines()[-1] == "vlprune: random@600: keep=600: the image has only 576 visual tokens."
    code, _, err = program("study", "ablation", "--small", "--questions", 1, "--keep", 600, "--out", "study")
    assert code == 2
    assert "only 576 visual tokens" in err

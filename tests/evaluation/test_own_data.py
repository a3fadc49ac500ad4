"""docs/own-data.md: its lines and its commands as they are written, in a folder that has what they name."""

import json
import re
import shlex
from itertools import pairwise
from pathlib import Path

import pytest

from tests.support.evaluation_runs import read_lines
from tests.support.llava_checkpoint import save_clip, save_llava
from tests.test_docs import ROOT, blocks, commands_in
from vlprune import pocket
from vlprune.cli.app import main
from vlprune.errors import UserError
from vlprune.evaluation.questions import is_right, read_questions

PAGE = ROOT / "docs" / "own-data.md"
COMMANDS = [command for _, code in blocks(PAGE, "bash") for command in commands_in(code.splitlines())]
((_, LINES),) = blocks(PAGE, "jsonl")
RUN = Path("runs/eval-questions")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The page's questions, an image for each, and tiny models where it names checkpoints."""
    place = tmp_path_factory.mktemp("own")
    (place / "questions.jsonl").write_text(LINES)
    for name, image in zip(["kitchen.jpg", "street.png"], pocket.images(pocket.scenes("test", 2))):
        (place / "photos").mkdir(exist_ok=True)
        image.save(place / "photos" / name)
    for command in COMMANDS:
        words = dict(pairwise(command))
        if "--model" in words:
            save_llava(place / words["--model"], side=24)
        if "--dual-encoder" in words:
            save_clip(place / words["--dual-encoder"], side=24)
    return place


@pytest.fixture
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder


def test_its_lines_are_questions(here):
    questions = read_questions(here / "questions.jsonl")
    assert len(questions) == len(LINES.splitlines()) >= 4
    assert any(len(question.answers) > 1 for question in questions)
    assert any(question.kind != "all" for question in questions)
    assert all(question.image().size == (192, 192) for question in questions)
    (here / "broken.jsonl").write_text(
        '{"image": "photos/street.png", "question": "What?", "answer": "x"}\n{"image": "a.png", "question": "b"}'
    )
    (told,) = [line.strip("`") for line in PAGE.read_text().splitlines() if line.startswith("`vlprune: --data")]
    said = told.removeprefix("vlprune: ").replace("questions.jsonl", "broken.jsonl").partition("{")[0]
    with pytest.raises(UserError) as refused:
        read_questions(Path("broken.jsonl"))
    assert str(refused.value).startswith(said)


@pytest.mark.parametrize("command", COMMANDS, ids=shlex.join)
def test_a_command(here, command, capsys):
    """In the page's order: the later ones go on from what the first wrote."""
    with pytest.raises(SystemExit) as end:
        main(command[1:])
    said = capsys.readouterr()
    assert end.value.code == 0, said.err
    assert said.out


def test_what_it_says_is_written_is_there(here):
    """And the second command went on in the folder of the first."""
    told = re.findall(r"^\| `([^`]+)` \| [^|]+ \|$", PAGE.read_text(), re.M)
    assert {"manifest.json", "result.md", "result.json", "accuracy.png", "answers/script@64.jsonl"} == set(told)
    assert [name for name in told if not (RUN / name).is_file()] == []
    found = json.loads((RUN / "result.json").read_text())
    assert set(found["data"]["p"]["script"]) == {"random@64", "random@32", "divprune@64", "divprune@32"}
    assert len(read_lines(RUN, "script@64")) == len(LINES.splitlines())
    assert Path("report.html").is_file()


def test_its_table_of_what_is_right():
    """Each row of the page's table of answers is what `is_right` says."""
    rows = [line.strip("| ").split(" | ") for line in PAGE.read_text().splitlines() if line.count(" | ") == 3]
    judged = [row for row in rows if row[2] in ("right", "wrong")]
    assert len(judged) >= 5
    for said, answer, *verdicts in judged:
        answers = json.loads(answer.strip("`"))
        answers = answers if isinstance(answers, list) else [answers]
        found = [is_right(said.strip("`"), answers, match) for match in ("exact", "contains")]
        assert [verdict.strip() == "right" for verdict in verdicts] == found, said

"""What commands print, on terminals of 60, 80 and 200 columns."""

import pytest
import typer

from tests.support.printed_tables import WIDTHS, check_nothing_is_cut, noted_tables
from vlprune.cli.app import app

PROGRAM = typer.main.get_command(app)
QUESTION = "how many dogs ?"
QUICK = ("--model", "MODEL", "--keep", "4")
#: A quick form of each command, and how many tables it prints.
COMMANDS = {
    "ask": (("ask", "PHOTO", QUESTION, *QUICK), 1),
    "compare": (("compare", "PHOTO", QUESTION, *QUICK, "--repeats", "1", "--max-new-tokens", "2"), 1),
    "demo": (("demo", "--model", "pocket"), 2),
    "methods": (("methods",), 2),
    "models": (("models",), 1),
    "bench": (("bench", *QUICK, "--methods", "all", "--new", "2", "--repeats", "1"), 1),
    "eval": (("eval", "--questions", "1", "--methods", "script,random,fastv,visionzip", "--keep", "64,600"), 8),
    "study": (("study", "overlap", "--small", "--questions", "1"), 2),
    "reproduce": (("reproduce", "llava-1.5-7b", "--dry-run"), 2),
    "scene": (("scene",), 0),
    "report": (("report", "runs/thresholds-small"), 0),
}


def test_all_commands_are_here():
    """But for the studio, which prints an address."""
    assert {*COMMANDS, "studio"} == set(PROGRAM.commands)


@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_cut_or_too_wide(program, photo, checkpoint, monkeypatch, request, name):
    """Lines that were wrapped by hand too; a path that a line names is as long as it is."""
    words, count = COMMANDS[name]
    options = {option for one in PROGRAM.commands[name].params for option in one.opts}
    words = (*words, "--wide") if "--wide" in options else words
    monkeypatch.setenv("COLUMNS", "60")
    if name == "report":
        assert program("study", "thresholds", "--small", "--questions", "1")[0] == 0
    else:  # a report shows pictures, the others only write them
        request.getfixturevalue("undrawn")
    with noted_tables() as tables:
        code, out, err = program(*({"PHOTO": photo, "MODEL": checkpoint}.get(word, word) for word in words))
    assert code == 0, err
    assert len(tables) == count
    assert all(table.wide for table in tables if any(column.extra for column in table.columns))
    long = [line for line in out.splitlines() if len(line) > 60 and not line.startswith(("wrote ", "Try: "))]
    assert long == []
    for table in tables:
        for width in WIDTHS:
            check_nothing_is_cut(table, width)

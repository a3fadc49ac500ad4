"""What commands print on."""

import io
import re
import subprocess
import sys

import pytest
from matplotlib.figure import Figure
from rich.cells import cell_len
from rich.console import Console
from rich.progress import Progress

from vlprune.cli.terminal import Steps, console, show_steps


class Screen(io.StringIO):
    """A terminal."""

    def isatty(self):
        return True


@pytest.mark.parametrize(("said", "width"), [(None, 80), ("60", 60), ("200", 200), ("wide", 80), ("0", 80)])
def test_width_where_there_is_no_terminal(monkeypatch, said, width):
    monkeypatch.delenv("COLUMNS", raising=False)
    if said is not None:
        monkeypatch.setenv("COLUMNS", said)
    assert console().width == width


def test_steps_on_a_terminal(monkeypatch, loaded):
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    with show_steps("loading pocket") as steps:
        steps.begin("answering 1 of 2", total=2)
        steps.advance("answering 2 of 2")
        steps.expect(3)
        with steps.follow(loaded.model):
            assert sum(len(child._forward_pre_hooks) for child in loaded.model.base_model.children()) >= 2
        steps.begin("drawing")
    assert "loading pocket" in screen.getvalue()
    assert "drawing" in screen.getvalue()


def test_new_words_are_drawn_at_once_and_the_same_ones_are_not(monkeypatch):
    """A decoder says "answering" at every token, which must cost it nothing."""
    drawn = []
    with Progress(console=Console(file=io.StringIO()), auto_refresh=False) as bar:
        monkeypatch.setattr(bar, "refresh", lambda: drawn.append(bar.tasks[0].description))
        steps = Steps(bar, "loading")
        drawn.clear()
        for what in ("vision", "answering", "answering", "answering"):
            steps.begin(what)
        steps.advance()
        assert drawn == ["vision", "answering"]
        monkeypatch.undo()


def test_a_step_after_a_finished_one_goes_on():
    with Progress(console=Console(file=io.StringIO())) as bar:
        steps = Steps(bar, "loading")
        steps.begin("answering", total=1)
        steps.advance()
        assert bar.finished
        steps.begin("drawing")
        assert not bar.finished
        assert (bar.tasks[0].total, bar.tasks[0].completed, bar.tasks[0].description) == (None, 0, "drawing")


@pytest.mark.parametrize("width", [20, 60, 80, 200])
def test_the_bar_leaves_room_for_ctrl_c(monkeypatch, width):
    """A terminal shows it as ^C behind the bar; in a new line it would stay, and half of the bar with it."""
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("COLUMNS", str(width))
    with show_steps("loading " + "a model with a long name " * 10):
        pass
    lines = re.split(r"[\r\n]", re.sub(r"\x1b\[[?0-9;]*[A-Za-z]", "", screen.getvalue()))
    assert 0 < max(map(cell_len, lines)) <= width - 2


def test_one_plain_line_elsewhere(capsys):
    for quiet, said in ((False, "vlprune: loading pocket ...\n"), (True, "")):
        with show_steps("loading pocket", quiet=quiet) as steps:
            assert capsys.readouterr().err == said
            steps.begin("answering")
            steps.advance("more")
            steps.expect(2)
            steps.reach(1, None)
        assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("short_demo", "undrawn")
@pytest.mark.parametrize(
    "command",
    [
        ("ask", "PHOTO", "what?", "--show", "kept.png", "--max-new-tokens", "1"),
        ("compare", "PHOTO", "what?", "--methods", "random", "--repeats", "1", "--max-new-tokens", "1"),
        ("demo", "--model", "pocket", "--keep", "16"),
        ("eval", "--methods", "random", "--questions", "1", "--keep", "16"),
        ("study", "thresholds", "--small", "--questions", "1"),
    ],
    ids=lambda command: command[0],
)
def test_a_bar_while_pictures_are_drawn(program, photo, monkeypatch, command):
    """They take seconds."""
    screen, shown = Screen(), []
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setattr(Steps, "begin", lambda self, what, total=None: shown.append(what))
    draw = Figure.savefig
    monkeypatch.setattr(Figure, "savefig", lambda *args, **more: [shown.append("SAVED"), draw(*args, **more)])
    leave = Progress.__exit__
    monkeypatch.setattr(Progress, "__exit__", lambda *args: [shown.append("GONE"), leave(*args)][1])
    assert program(*(photo if word == "PHOTO" else word for word in command))[0] == 0
    assert shown[-3:] == ["drawing", "SAVED", "GONE"]
    if command[0] == "ask":
        assert [*dict.fromkeys(shown)][:3] == ["loading pocket", "vision", "answering"]
    if command[0] == "demo":
        assert shown[0].startswith("answering 1 of ")


@pytest.mark.parametrize(
    "command",
    [
        ("ask", "PHOTO", "what?"),
        ("compare", "PHOTO", "what?"),
        ("demo", "--model", "pocket"),
        ("bench",),
        ("eval",),
        ("study", "overlap"),
    ],
    ids=lambda command: command[0],
)
def test_the_first_line_comes_before_what_takes_long(command, photo, tmp_path):
    """torch is made to fail at its import: the line is there all the same."""
    words = [photo if word == "PHOTO" else word for word in command]
    code = f"import sys; sys.modules['torch'] = None; from vlprune.cli.app import main; main({words!r})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert done.stderr.startswith("vlprune: loading pocket"), done.stderr
    assert done.stderr.splitlines()[0].endswith(" ...")
    assert "torch" in done.stderr  # it came to that

"""What commands print on."""

import io
import subprocess
import sys

import pytest

from vlprune.cli.terminal import console, show_steps


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


def test_one_plain_line_elsewhere(capsys):
    for quiet, said in ((False, "vlprune: loading pocket ...\n"), (True, "")):
        with show_steps("loading pocket", quiet=quiet) as steps:
            assert capsys.readouterr().err == said
            steps.begin("answering")
            steps.advance("more")
            steps.expect(2)
            steps.reach(1, None)
        assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "command",
    [("ask", "PHOTO", "what?"), ("compare", "PHOTO", "what?"), ("demo",), ("bench",), ("eval",), ("study", "overlap")],
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

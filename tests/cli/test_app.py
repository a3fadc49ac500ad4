"""The program as a whole: its help, its version and its exit codes."""

import errno
import json
import subprocess
import sys
from importlib import resources

import pytest
import typer

import vlprune
from vlprune import pocket
from vlprune.cli.app import app


def program(*arguments, module="vlprune"):
    return subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=120)


def test_help_teaches_and_loads_nothing_heavy():
    """What makes --help quick is what it does not load."""
    done = program("--help")
    assert done.returncode == 0
    for word in ("ask", "compare", "demo", "methods", "models", "bench", "eval", "study", "report", "Start with"):
        assert word in done.stdout
    assert "`vlprune scene` draws an image to ask about" in " ".join(done.stdout.split())
    heavy = "{'torch', 'transformers', 'matplotlib', 'numpy', 'PIL', 'rich'} & set(sys.modules)"
    loads = f"import sys, vlprune.cli.app; print('loaded', *{heavy})"
    assert subprocess.run([sys.executable, "-c", loads], capture_output=True, text=True).stdout.split() == ["loaded"]


def test_version_and_module(run):
    assert run("--version") == (0, f"vlprune {vlprune.__version__}\n", "")
    assert program("--version").stdout == f"vlprune {vlprune.__version__}\n"


def test_no_arguments_show_the_help(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    assert "Usage: vlprune" in out


def test_exit_code_of_the_program():
    done = program("ask", "none.png", "what?")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "vlprune: there is no file 'none.png'.\n"


@pytest.mark.usefixtures("short_demo")
def test_a_full_disk(run, refused_by, monkeypatch, tmp_path):
    """Wherever a file is written: one sentence."""
    full = OSError(errno.ENOSPC, "No space left on device", "figures.png")

    def fail(*args, **options):
        raise full

    bench = ("bench", "--keep", "64", "--repeats", "1", "--new", "1", "--out", "figures.json")
    with monkeypatch.context() as patched:
        patched.setattr("pathlib.Path.write_text", fail)
        assert refused_by(*bench) == "vlprune: 'figures.json' cannot be written (No space left on device)."
        assert "the disk is full" in refused_by("eval", "--methods", "random", "--questions", "1", "--keep", "64")
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    sentence = refused_by("demo", "--model", "pocket", "--out", "figures.png")
    assert sentence == "vlprune: 'figures.png' cannot be written (No space left on device)."


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.EROFS, "manifest.json cannot be written: the disk is read-only."),
        (errno.EACCES, "manifest.json cannot be opened: permission denied."),
    ],
)
def test_a_disk_that_refuses(refused_by, monkeypatch, number, sentence):
    def fail(*args, **options):
        raise OSError(number, "no", "out")

    monkeypatch.setattr("pathlib.Path.write_text", fail)
    assert refused_by("eval", "--methods", "random", "--questions", "1", "--keep", "64").endswith(sentence)


@pytest.fixture
def refused_by(run):
    def call(*arguments):
        code, _, err = run(*arguments)
        assert code == 2
        return err.splitlines()[-1]

    return call


def test_types_are_for_users_too():
    assert (resources.files("vlprune") / "py.typed").is_file()


def test_help_shows_all_budgets(run):
    for command in ("ask", "demo", "compare"):
        told = " ".join(run(command, "--help")[1].split())
        for form in ("(64)", "(0.1)", "32/tile", "16/frame", "32/tile/compete", "64/layer", "64~0.05", "192+64"):
            assert form in told


AS_JSON = {
    "ask": ("ask", "SCENE", "what color is the star?", "--max-new-tokens", "1"),
    "compare": ("compare", "SCENE", "what color is the star?", "--methods", "random", "--repeats", "1"),
    "demo": ("demo", "--model", "pocket", "--keep", "16"),
    "bench": ("bench", "--keep", "16", "--new", "1", "--repeats", "1"),
    "eval": ("eval", "--methods", "random", "--questions", "1", "--keep", "16"),
    "study": ("study", "thresholds", "--small", "--questions", "1"),
    "reproduce": ("reproduce", "video", "--dry-run"),
}


@pytest.mark.usefixtures("short_demo", "undrawn")
@pytest.mark.parametrize("name", AS_JSON)
def test_json_means_the_same_everywhere(program, tmp_path, name):
    """One JSON document on the standard output, and nothing else anywhere."""
    pocket.images(pocket.scenes("test", 1))[0].save(tmp_path / "scene.png")
    code, out, err = program(*("scene.png" if word == "SCENE" else word for word in AS_JSON[name]), "--json")
    assert (code, err) == (0, "")
    assert isinstance(json.loads(out), dict)


def test_commands_with_json():
    """All that compute something have it, and it is described in the same words."""
    commands = typer.main.get_command(app).commands
    told = {name: [one.help for one in command.params if "--json" in one.opts] for name, command in commands.items()}
    assert {name for name, helps in told.items() if helps} == set(AS_JSON)
    assert len({helps[0] for helps in told.values() if helps}) == 1


def test_ctrl_c(run, photo, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("vlprune.cli.ask.load_model", stop)
    code, _, err = run("ask", photo, "what is it ?")
    assert (code, err.splitlines()[-1]) == (130, "vlprune: stopped.")

"""The program as a whole: its help, its version and its exit codes."""

import subprocess
import sys

import vlprune


def program(*arguments, module="vlprune"):
    return subprocess.run([sys.executable, "-m", module, *arguments], capture_output=True, text=True, timeout=120)


def test_help_teaches_and_loads_nothing_heavy():
    """What makes --help quick is what it does not load."""
    done = program("--help")
    assert done.returncode == 0
    for word in ("ask", "compare", "demo", "methods", "models", "bench", "eval", "study", "report", "Start with"):
        assert word in done.stdout
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


def test_ctrl_c(run, photo, monkeypatch):
    def stop(*args, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("vlprune.cli.ask.load_model", stop)
    code, _, _ = run("ask", photo, "what is it ?")
    assert code == 130

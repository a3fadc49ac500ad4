"""The short forms of the campaigns in benchmarks/: fuzz.py, faults.py and soak.py; and on_gpu.py without a GPU."""

import argparse
import copy
import importlib
import random
import shlex
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tests.support import selection_reference as reference
from tests.support.forks import Forks
from tests.support.scripts import load_script
from vlprune import pocket
from vlprune.cuda_graphs.capture import Capturing
from vlprune.record import Record

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def fuzz():
    return load_script("benchmarks/fuzz.py")


@pytest.fixture(scope="module")
def selections(fuzz):
    return importlib.import_module("fuzz_cases.selections")


@pytest.mark.parametrize(("name", "cases"), [("selections", 150), ("layouts", 200), ("images", 200), ("prompts", 6)])
def test_fuzz(fuzz, name, cases):
    kinds, wrong, number = fuzz.run(name, cases, seed=1)
    assert wrong == {}
    assert number == cases
    assert len(kinds) > 3


def test_fuzz_videos(fuzz):
    pytest.importorskip("av")
    assert fuzz.run("videos", 8, seed=1)[1] == {}


@pytest.mark.parametrize(("name", "number"), [("images", 5668), ("images", 8788), ("images", 9063), ("videos", 356)])
def test_cases_that_were_wrong_once(fuzz, name, number):
    """What the long campaigns found, with seed 0."""
    if name == "videos":
        pytest.importorskip("av")
    assert fuzz.run(name, 1, first=number)[1] == {}


def test_the_references_of_the_fuzz_are_the_slow_ones(selections):
    """Its numpy says what the obvious loops say."""
    for seed in range(5):
        tokens, query = reference.correlated_units(seed, 9, 6), reference.correlated_units(seed + 9, 2, 6)
        cosines = selections.cosines(tokens, tokens)
        for graph in ("bipartite", "full"):
            got = selections.scores64(cosines, 0.3, 5.0, graph)
            np.testing.assert_allclose(got, reference.graph_scores(tokens.tolist(), 0.3, 5.0, graph))
        relevance = reference.relevance_scores(tokens.tolist(), query.tolist())
        np.testing.assert_allclose(selections.relevance64(tokens, query), relevance)
        kernel = np.array(reference.query_kernel(tokens.tolist(), relevance))
        order = reference.greedy(kernel, 4)
        selections.check_order(kernel, order, None)
        with pytest.raises(selections.Wrong, match="another would add"):
            selections.check_order(kernel, order[::-1], None)


def test_a_case_can_be_made_again(fuzz):
    media = importlib.import_module("fuzz_cases.media")
    one, other = (media.drawn_image(random.Random("0 images 7")) for _ in range(2))
    assert one == other


@pytest.fixture(scope="module")
def forks():
    with Forks() as forks:
        yield forks


@pytest.fixture(scope="module")
def pocket_model():
    return pocket.load()


@pytest.fixture(autouse=True)
def _pocket_model(pocket_model, monkeypatch):
    """A copy is made sooner than loaded."""
    monkeypatch.setattr(pocket, "load", lambda: copy.deepcopy(pocket_model))


def run_here(monkeypatch, capsys, script, *words, forks=subprocess):
    """A script's words; it runs in this process, and what it starts is started by `forks`."""
    module = load_script(f"benchmarks/{script}")
    monkeypatch.setattr(module, "subprocess", forks, raising=False)
    monkeypatch.setattr(sys, "argv", [script, *map(str, words)])
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)  # what it sets would outlast the test
    with pytest.raises(SystemExit) as end:
        module.main()
    said = capsys.readouterr().out
    assert end.value.code == 0, said
    return said


def test_cases_shared_between_processes(fuzz, forks, monkeypatch, capsys, tmp_path):
    """Together they are the cases of one process."""
    words = ["layouts", "--cases", 21, "--seed", 1, "--jobs", 2, "--state", tmp_path]
    said = run_here(monkeypatch, capsys, "fuzz.py", *words, forks=forks)
    assert "21 cases from 0 on (seed 1), 0 wrong" in said
    alone = fuzz.run("layouts", 21, seed=1)[0]
    assert [line for line in said.splitlines() if line.startswith("  ")] == [
        f"  {kind}: {count}" for kind, count in sorted(alone.items())
    ]


def test_broken_checkpoints(forks):
    """In a process of its own, which forks: torch's threads, once they run, do not."""
    words = [sys.executable, BENCHMARKS / "fuzz.py", "configs", "--cases", 4, "--seed", 1]
    assert "4 cases from 0 on (seed 1), 0 wrong" in forks.run(words).stdout


def test_killed_runs_go_on(forks, monkeypatch, capsys):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as the script sets it
    words = ["kill", "--kills", 2, "--commands", "eval", "--seed", 3]
    said = run_here(monkeypatch, capsys, "faults.py", *words, forks=forks)
    assert "2 kills, eval" in said
    assert "0 wrong" in said


def test_soak(forks, monkeypatch, capsys):
    """It starts the fresh process itself; its words are those of the script."""
    words = ["--calls", 24, "--distinct", 3, "--threads", 2, "--beds", "script", "qwen2_5_vl", "llava_next"]
    said = run_here(monkeypatch, capsys, "soak.py", *words, forks=forks)
    assert "24 calls of 3 models by 2 threads" in said
    assert "0 differ from a fresh process" in said
    assert "MiB are left of the memory after malloc_trim" in said
    assert "after detach 0 left, 0 modules changed" in said


def test_the_control_has_no_pruners(forks, monkeypatch, capsys):
    words = ["--calls", 6, "--distinct", 2, "--beds", "llava_next", "--plain"]
    said = run_here(monkeypatch, capsys, "soak.py", *words, forks=forks)
    assert "6 calls of 1 models" in said
    assert "0 differ from a fresh process" in said
    assert "0 hooks; after detach 0 left" in said


def test_soak_on_tapes(forks, monkeypatch, capsys):
    monkeypatch.setattr(Capturing, "capture", Capturing.capture)  # every capture of the script is on tape
    words = ["--calls", 6, "--distinct", 2, "--beds", "llava_next", "--cuda-graphs"]
    said = run_here(monkeypatch, capsys, "soak.py", *words, forks=forks)
    assert "0 differ from a fresh process" in said
    assert "graphs held at the end, by 1 of the models" in said


def test_the_same_again(monkeypatch, capsys):
    said = run_here(monkeypatch, capsys, "soak.py", "--repeats", 1)
    assert "script: again 1, again: differ 0, beside two others 1" in said
    assert said.count("1 scenes in float64: 0 differ by a tie, 0 differ otherwise") == 4


def test_tokens_of_another_device(monkeypatch, capsys):
    """Ties are told apart from models that differ."""
    soak = load_script("benchmarks/soak.py")
    one = ([4, 7, 2], [2.0, 1.0, 0.5])
    assert soak.parting(one, ([4, 2, 7], [2.0, 1.0 + 2e-6, 0.4]))[0] == pytest.approx(1e-6)
    assert soak.parting(one, ([4, 2, 7], [2.0, 1.5, 0.4]))[0] == pytest.approx(0.25)
    assert soak.parting(one, one)[0] == float("inf")
    order, gains = torch.tensor([4, 7, -1]), torch.tensor([2.0, 1.0, 0.0])  # the greedy stopped after two choices
    stopped = soak.rankings(Record(order[:1], before=9, after=1, grid=(3, 3), order=order, gains=gains))[0]
    assert stopped == ([4, 7], [2.0, 1.0])
    assert soak.parting(one, stopped)[0] == float("inf")
    made = []

    class Shaken(soak.PocketBed):
        """The second that is made has other weights."""

        def __init__(self, *args):
            super().__init__(*args)
            made.append(self)
            if len(made) == 2:
                for weight in self.model.model.multi_modal_projector.parameters():
                    weight.data += 0.1 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))

    monkeypatch.setattr(soak, "PocketBed", Shaken)
    assert soak.devices("script", 2, "cpu") == 2
    assert (
        "script: 2 scenes in float64: 0 differ by a tie, 2 differ otherwise\n  scene 0, rank "
        in capsys.readouterr().out
    )


# --- what only a GPU can show ---


@pytest.fixture(scope="module")
def on_gpu():
    return load_script("benchmarks/on_gpu.py")


def test_the_commands_for_a_gpu_are_understood(on_gpu, monkeypatch, tmp_path):
    """Each script takes its step's words, and every test that is named is there."""

    class Understood(Exception):
        pass

    parse = argparse.ArgumentParser.parse_args

    def parse_only(parser):
        raise Understood(parse(parser))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    for words in [words for group in on_gpu.GROUPS.values() for words in group.values()]:
        script, *rest = words.format(logs=tmp_path).split()
        if script == "-m":
            missing = [word for word in rest if word.startswith("tests/") and not (BENCHMARKS.parent / word).exists()]
            assert missing == []
        else:
            monkeypatch.setattr(sys, "argv", [script, *rest])
            with pytest.raises(Understood):
                load_script(script).main()


def test_steps_on_a_gpu(on_gpu, monkeypatch, capsys, tmp_path):
    """One is right, one is not, one takes too long, with what it has started, and one cannot begin."""
    endless = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'print(1); import time; time.sleep(99)'])"
    codes = {"one": "print('seen')", "two": "raise SystemExit(3)", "three": endless, "four": "print('never')"}
    commands = {name: f"-c {shlex.quote(code)}" for name, code in codes.items()}
    third = tmp_path / "three.log"

    def monotonic():
        """Time is over as soon as the third step has begun something."""
        return 1e9 if third.exists() and third.read_text() else 0.0

    monkeypatch.setattr(on_gpu, "time", SimpleNamespace(monotonic=monotonic, sleep=time.sleep))
    monkeypatch.setitem(on_gpu.GROUPS, "fast", commands)
    monkeypatch.setattr(sys, "argv", ["on_gpu.py", "fast", "--logs", str(tmp_path)])
    assert on_gpu.main() == 1
    said = capsys.readouterr().out
    for line in ("== one: right", "seen", "== two: exit 3", "== three: out of time", "== four: not begun, 0 s"):
        assert line in said
    assert "never" not in said
    assert (tmp_path / "one.log").read_text() == "seen\n"

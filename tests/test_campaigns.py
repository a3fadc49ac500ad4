"""The short forms of the campaigns in benchmarks/: fuzz.py, faults.py and soak.py."""

import os
import random
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.support import selection_reference as reference
from tests.support.scripts import load_script

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"


@pytest.fixture(scope="module")
def fuzz():
    return load_script("benchmarks/fuzz.py")


@pytest.mark.parametrize(("name", "cases"), [("selections", 150), ("layouts", 200), ("images", 200), ("prompts", 12)])
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


def test_the_references_of_the_fuzz_are_the_slow_ones(fuzz):
    """Its numpy says what the obvious loops say."""
    for seed in range(5):
        tokens, query = reference.correlated_units(seed, 9, 6), reference.correlated_units(seed + 9, 2, 6)
        cosines = fuzz.cosines(tokens, tokens)
        for graph in ("bipartite", "full"):
            got = fuzz.scores64(cosines, 0.3, 5.0, graph)
            np.testing.assert_allclose(got, reference.graph_scores(tokens.tolist(), 0.3, 5.0, graph))
        relevance = reference.relevance_scores(tokens.tolist(), query.tolist())
        np.testing.assert_allclose(fuzz.relevance64(tokens, query), relevance)
        kernel = np.array(reference.query_kernel(tokens.tolist(), relevance))
        order = reference.greedy(kernel, 4)
        fuzz.check_order(kernel, order, None)
        with pytest.raises(fuzz.Wrong, match="another would add"):
            fuzz.check_order(kernel, order[::-1], None)


def test_a_case_can_be_made_again(fuzz):
    one, other = (fuzz.drawn_image(random.Random("0 images 7")) for _ in range(2))
    assert one == other


def run(script, *words):
    done = subprocess.run(
        [sys.executable, BENCHMARKS / script, *map(str, words)], capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_killed_runs_go_on():
    said = run("faults.py", "kill", "--kills", 2, "--commands", "eval", "--seed", 3)
    assert "0 wrong" in said


def test_soak(monkeypatch, capsys):
    """In this process; what it compares with comes from a fresh one."""
    words = "--calls 10 --distinct 3 --threads 2 --methods script"
    monkeypatch.setattr(sys, "argv", ["soak.py", *words.split()])
    with pytest.raises(SystemExit) as end:
        load_script("benchmarks/soak.py").main()
    said = capsys.readouterr().out
    assert end.value.code == 0, said
    assert "0 differ from a fresh process" in said
    assert "after detach 0, and 0 modules changed" in said

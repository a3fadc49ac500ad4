"""A method of another package that fails: one sentence that names it and its error, and no traceback."""

import json
from dataclasses import dataclass
from typing import ClassVar

import pytest

from tests.support.registries import installed
from vlprune.methods import InLLMMethod, Method, ScoreMethod
from vlprune.types import Selection


@dataclass(frozen=True)
class Broken(Method):
    """Raises in `select`."""

    name: ClassVar[str] = "broken"

    def select(self, view, query):
        return {}["nothing"]


@dataclass(frozen=True)
class BrokenScores(ScoreMethod):
    """Raises in the part of `select` that is its own."""

    name: ClassVar[str] = "broken"

    def score(self, view, query):
        return view.features @ query  # there is no query


@dataclass(frozen=True)
class BrokenInside(InLLMMethod):
    """Raises inside the LLM."""

    name: ClassVar[str] = "broken"

    def cut_schedule(self, n, layers):
        return ((1, 4),)

    def cut(self, scores, states, keep):
        raise RuntimeError("no cut today")


@dataclass(frozen=True)
class BrokenSettings(Method):
    """Raises when it is made."""

    name: ClassVar[str] = "broken"

    def __post_init__(self):
        raise TypeError("no settings at all")

    def select(self, view, query):
        raise NotImplementedError


@dataclass(frozen=True)
class Silent(Method):
    """Raises without a word."""

    name: ClassVar[str] = "broken"

    def select(self, view, query):
        raise ValueError


@dataclass(frozen=True)
class Nonsense(Method):
    """Returns what fits nothing."""

    name: ClassVar[str] = "broken"

    def select(self, view, query):
        return Selection(kept=[1, 2])


CASES = [
    (Broken, "method 'broken' raised KeyError: 'nothing'"),
    (BrokenScores, "method 'broken' raised TypeError: "),
    (BrokenInside, "method 'broken' raised RuntimeError: no cut today"),
    (BrokenSettings, "method 'broken' raised TypeError: no settings at all."),
    (Silent, "method 'broken' raised ValueError."),
    (Nonsense, "method 'broken': kept must be a tensor; it is a list."),
]


@pytest.mark.parametrize(("method", "sentence"), CASES, ids=lambda case: getattr(case, "__name__", ""))
def test_one_sentence(program, photo, method, sentence):
    with installed("vlprune.methods", broken=method):
        code, out, err = program("ask", photo, "what?", "--method", "broken", "--keep", 4, "--max-new-tokens", 1)
    assert (code, out) == (2, "")
    last = err.splitlines()[-1]
    assert last.startswith("vlprune: ")
    assert sentence in last
    assert "Traceback" not in err


def test_others_are_compared_all_the_same(program, photo):
    with installed("vlprune.methods", broken=Broken):
        options = ("--methods", "broken,random", "--keep", 4, "--max-new-tokens", 1, "--repeats", 1)
        code, out, err = program("compare", photo, "what?", *options)
        assert code == 0, err
        assert "cannot run: method 'broken' raised KeyError: 'nothing'" in " ".join(
            " ".join(line.split("│")[2] for line in out.splitlines() if line.count("│") > 3).split()
        )
        assert "random" in out
        code, _, err = program("bench", "--methods", "broken", "--keep", 4, "--new", 1, "--repeats", 1)
        assert code == 2
        assert "method 'broken' raised KeyError: 'nothing'" in err
    with installed("vlprune.methods", broken=BrokenSettings):
        code, _, err = program("methods")
        assert (code, err.splitlines()[-1]) == (2, f"vlprune: {CASES[3][1]}")


def test_a_reason_is_always_given(program, photo):
    """In the tables too."""
    with installed("vlprune.methods", broken=Silent):
        quick = ("--methods", "broken,random", "--keep", 4)
        code, out, err = program("compare", photo, "what?", *quick, "--max-new-tokens", 1, "--repeats", 1, "--json")
        assert code == 0, err
        assert json.loads(out)["methods"]["broken"]["reason"] == CASES[4][1]
        code, out, err = program("eval", "--questions", 1, *quick, "--json")
        assert code == 0, err
        assert json.loads(out)["tables"][-1]["rows"] == [["broken@4", CASES[4][1]]]


@pytest.mark.parametrize("command", ["compare", "eval", "bench"])
def test_a_package_that_cannot_be_loaded(run, photo, checkpoint, tmp_path, command):
    """One line names it and its error, once; the other methods run all the same."""
    told = "vlprune: the method 'broken' of the package 'plugin' cannot be loaded (ImportError: no module 'x')."
    (tmp_path / "own.jsonl").write_text(json.dumps({"image": photo, "question": "what?", "answer": "cat"}))
    words = {
        "compare": ("compare", photo, "what?", "--max-new-tokens", 1, "--repeats", 1),
        "eval": ("eval", "--data", "own.jsonl", "--max-new-tokens", 1),
        "bench": ("bench", "--new", 1, "--repeats", 1),
    }[command]
    for names, expected in (("broken,random", 2), ("all", 0)):
        with installed("vlprune.methods", broken=ImportError("no module 'x'.")):
            code, out, err = run(*words, "--model", checkpoint, "--keep", 4, "--methods", names)
        assert code == expected, err
        assert err.splitlines().count(told) == err.count("ImportError") == 1
        if expected:
            assert err.splitlines()[-1] == "vlprune: --methods broken: it cannot be loaded, as a warning said."
        else:
            assert "uniform_grid" in out
            assert "broken" not in out

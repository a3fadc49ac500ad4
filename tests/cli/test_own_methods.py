"""A method of another package that fails: one sentence that names it and its error, and no traceback."""

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
class Nonsense(Method):
    """Returns what fits nothing."""

    name: ClassVar[str] = "broken"

    def select(self, view, query):
        return Selection(kept=[1, 2])


CASES = [
    (Broken, "method 'broken' raised KeyError: 'nothing'"),
    (BrokenScores, "method 'broken' raised TypeError: "),
    (BrokenInside, "method 'broken' raised RuntimeError: no cut today"),
    (BrokenSettings, "method 'broken' raised TypeError: no settings at all"),
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

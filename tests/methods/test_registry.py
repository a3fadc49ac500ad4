"""Methods by name: those of the package, registered ones, and those of installed packages."""

import dataclasses
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import vlprune
from tests.support.registries import installed, isolated_registries
from vlprune import DppOnly, Method, Random, ScoreMethod, Script, get_method, list_methods, register_method
from vlprune.types import TokenView

PACKAGE = Path(vlprune.__file__).parent


@dataclasses.dataclass(frozen=True)
class First(ScoreMethod):
    """Keeps the first tokens."""

    name = "first"

    def score(self, view, query):
        return -torch.arange(view.n, dtype=torch.float32).expand(len(view.features), -1)


@dataclasses.dataclass(frozen=True)
class OtherFirst(First):
    """Another method of the same name."""


def test_methods_by_name():
    assert {"script", "random", "dpp_only"} <= set(list_methods())
    assert get_method("script", keep=16, fusion="filter") == Script(keep=16, fusion="filter")
    assert get_method("random", seed=3) == Random(seed=3)
    assert get_method("dpp_only", keep=0.5) == DppOnly(keep=0.5)
    with pytest.raises(ValueError, match="did you mean 'dpp_only'"):
        get_method("dpp-only")
    with pytest.raises(ValueError, match="no such setting; did you mean 'fusion'"):
        get_method("script", fussion="filter")
    with pytest.raises(ValueError, match="choose from"):
        get_method("zzzzzz")


def test_every_method_file_is_registered():
    """A file that defines a method but is not imported in `vlprune/methods/__init__.py` is found here."""
    files = {path.stem for path in (PACKAGE / "methods").glob("*.py")}
    known = {type(get_method(name)).__module__.rpartition(".")[2] for name in list_methods()}
    assert files - known == {"__init__", "base", "in_llm", "registry", "settings"}


def test_a_method_that_only_scores():
    view = TokenView(torch.zeros(2, 6, 3), (2, 3))
    found = First(keep=2).select(view, None)
    assert found.kept.tolist() == found.order.tolist() == [[0, 1]] * 2
    assert found.scores.shape == (2, 6)
    assert (found.relevance, found.redundancy) == (None, None)
    with pytest.raises(TypeError, match="score"):
        ScoreMethod()


# --- names that are taken ---


def test_a_name_that_is_taken_is_refused():
    with isolated_registries():
        assert register_method(First) is First
        assert register_method(First) is First  # the same class again is no other method
        sentence = r"^name='first': taken by .*\.First; pass replace=True to put another in its place\.$"
        with pytest.raises(ValueError, match=sentence):
            register_method(OtherFirst)
        assert type(get_method("first")) is First
        assert register_method(replace=True)(OtherFirst) is OtherFirst
        assert type(get_method("first")) is OtherFirst
        register_method(First, replace=True)
        assert type(get_method("first", keep=2)) is First
    assert "first" not in list_methods()


@pytest.mark.parametrize("wrong", [First(), dict, "first", type("Nameless", (Method,), {})])
def test_what_is_no_method_is_refused(wrong):
    with isolated_registries(), pytest.raises(TypeError, match=r"^method="):
        register_method(wrong)


# --- methods of installed packages ---


def test_methods_of_installed_packages():
    with installed("vlprune.methods", first=First):
        assert "first" in list_methods()
        assert get_method("first", keep=2) == First(keep=2)
        register_method(First)
        assert get_method("first") == First()
    with installed("vlprune.methods", first=First):
        assert get_method("first", keep=2) == First(keep=2)  # without a look at the list


BROKEN = {
    "an error": (ImportError("no module named 'x'"), "ImportError: no module named 'x'"),
    "no method": (dict, "TypeError: method=<class 'dict'>: a subclass of Method"),
    "another name": (OtherFirst, "ValueError: its name is 'first'"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_package_is_named_in_one_warning_and_does_no_harm(broken):
    value, reason = BROKEN[broken]
    own = list_methods()
    with installed("vlprune.methods", bad=value, first=First), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert get_method("script") == Script()
        assert not said  # a method of our own asks no package
        assert list_methods() == sorted([*own, "first"])
        assert get_method("first") == First()
        with pytest.raises(ValueError, match=r"^name='bad': it cannot be loaded, as a warning said\.$"):
            get_method("bad")
        assert list_methods() == sorted([*own, "first"])
    words = [str(warning.message) for warning in said]
    assert words == [f"vlprune: the method 'bad' of the package 'plugin' cannot be loaded ({reason})."]


def test_a_package_does_not_take_a_name_of_ours():
    thief = dataclasses.dataclass(frozen=True)(type("Thief", (First,), {"name": "script"}))
    with installed("vlprune.methods", script=thief):
        with pytest.warns(UserWarning, match="the method 'script' of the package 'plugin'.*taken by vlprune"):
            list_methods()
        assert type(get_method("script")) is Script


# --- the names of the package itself ---


def test_every_method_is_a_name_of_the_package():
    classes = {type(get_method(name)) for name in list_methods()}
    assert {getattr(vlprune, kind.__name__) for kind in classes} == classes
    public = {kind.__name__ for kind in classes} | {"attach", "Pruner", "Budget", "Record", "get_method", "pocket"}
    assert public <= set(vlprune.__all__)
    assert set(vlprune.__all__) == set(dir(vlprune))
    assert all(getattr(vlprune, name) is not None for name in vlprune.__all__)
    assert not any(name.islower() and (PACKAGE / "methods" / f"{name}.py").exists() for name in vlprune.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Skript'"):
        _ = vlprune.Skript


def test_importing_the_package_does_not_import_torch():
    code = """
import sys, vlprune
from vlprune import cli, errors  # parts of it that do without, too
assert not hasattr(vlprune, "__wrapped__")
assert "torch" not in sys.modules
from vlprune import *
assert Script(keep=3).keep == 3 and "torch" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_is_typed():
    assert (PACKAGE / "py.typed").read_bytes() == b""
    assert 'packages = ["vlprune"]' in (PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8")

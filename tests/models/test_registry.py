"""Families by name: those of the package, registered ones, and those of installed packages."""

import warnings
from pathlib import Path

import pytest
import torch

import vlprune.models
from tests.support.families import CASES, made
from tests.support.families.llava import Llava
from tests.support.registries import installed, isolated_registries
from vlprune.models import Family, family_of, list_families, register_family

pytestmark = pytest.mark.filterwarnings("ignore:vlprune. .* has no family of its own")


class Toy(Family):
    """For `ToyModel`, which no other family knows."""

    name = "toy"
    classes = ("ToyModel",)

    def image_shapes(self, model, modality, output, inputs, run_lengths):
        return []


class OtherToy(Toy):
    """Another family of the same name."""


class ToyModel(torch.nn.Module):
    pass


def names():
    return [family.name for family in list_families()]


def test_every_family_has_a_tiny_model():
    """LLaVA-1.5's is not among the cases of `test_families.py`: it is what tests/pruning tests."""
    models = [made(case) for case in CASES] + [Llava().model()]
    assert {family_of(model).name for model in models} == set(names())
    classes = {type(model).__name__ for model in models}
    assert {kind for family in list_families() for kind in family.classes} <= classes


def test_every_file_of_families_is_imported():
    files = {path.stem for path in Path(vlprune.models.__file__).parent.glob("*.py")}
    known = {type(family).__module__.rpartition(".")[2] for family in list_families()}
    assert files - known == {"__init__", "base", "registry", "tower_attention"}


def test_a_name_that_is_taken_is_refused():
    with isolated_registries():
        assert register_family(Toy) is Toy
        register_family(Toy())  # the same class again is no other family
        assert type(family_of(ToyModel())) is Toy
        sentence = r"^name='toy': taken by .*\.Toy; pass replace=True to put another in its place\.$"
        with pytest.raises(ValueError, match=sentence):
            register_family(OtherToy())
        assert type(family_of(ToyModel())) is Toy
        assert register_family(replace=True)(OtherToy) is OtherToy
        assert type(family_of(ToyModel())) is OtherToy
        assert names().count("toy") == 1
    assert "toy" not in names()


def test_the_newest_family_of_a_class_is_taken():
    class Newer(Toy):
        name = "newer"

    with isolated_registries():
        register_family(Toy)
        register_family(Newer)
        assert type(family_of(ToyModel())) is Newer
        register_family(Toy)
        assert type(family_of(ToyModel())) is Toy


@pytest.mark.parametrize("wrong", [dict, "toy", 3, type("Nameless", (Toy,), {"name": None})])
def test_what_is_no_family_is_refused(wrong):
    with isolated_registries(), pytest.raises(TypeError, match=r"^family="):
        register_family(wrong)


@pytest.mark.parametrize("toy", [Toy, Toy()], ids=["class", "instance"])
def test_families_of_installed_packages(toy):
    with installed("vlprune.models", toy=toy):
        assert type(family_of(ToyModel())) is Toy
        assert "toy" in names()


BROKEN = {
    "an error": (ImportError("no module named 'x'"), "ImportError: no module named 'x'"),
    "no family": (dict, "TypeError: family=<class 'dict'>: a Family, or a subclass of it"),
    "another name": (OtherToy, "ValueError: its name is 'toy'"),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_package_is_named_in_one_warning_and_does_no_harm(broken):
    value, reason = BROKEN[broken]
    own = names()
    with installed("vlprune.models", bad=value, toy=Toy), warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert type(family_of(ToyModel())) is Toy
        assert names() == sorted([*own, "toy"])
        assert family_of(made(CASES[0])).name == CASES[0].name
    words = [str(warning.message) for warning in said]
    assert words == [f"vlprune: the model family 'bad' of the package 'plugin' cannot be loaded ({reason})."]

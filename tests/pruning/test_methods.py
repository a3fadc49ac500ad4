"""Budgets, methods and their registry."""

import dataclasses

import pytest
import torch

from vlprune import Budget, DppOnly, Random, Script, get_method, list_methods
from vlprune.methods import register_method
from vlprune.types import TokenView


@pytest.mark.parametrize(
    ("keep", "n", "count"),
    [(1, 576, 1), (64, 576, 64), (576, 576, 576), (1.0, 576, 576), (0.1, 576, 58), (0.5, 5, 3), (1e-9, 576, 1)],
)
def test_budgets(keep, n, count):
    budget = Budget.of(keep)
    assert budget.count(n) == count
    assert Budget.of(budget) is budget
    assert isinstance(budget.count(n), int)


@pytest.mark.parametrize("keep", [0, -1, 0.0, -0.5, 1.5, float("nan"), True, False, "64", None])
def test_wrong_budgets_name_keep(keep):
    for make in (Budget.of, lambda keep: Script(keep=keep), lambda keep: Random(keep=keep)):
        with pytest.raises(ValueError, match="keep="):
            make(keep)


def test_more_than_the_image_has():
    with pytest.raises(ValueError, match="keep=577: the image has only 576"):
        Budget.of(577).count(576)


def test_a_budget_is_one_of_two():
    for wrong in ({}, {"tokens": 1, "ratio": 0.5}):
        with pytest.raises(ValueError, match="exactly one"):
            Budget(**wrong)
    for wrong in ({"tokens": 0.5}, {"tokens": True}, {"ratio": 1}):
        with pytest.raises(TypeError, match="keep="):
            Budget(**wrong)


def test_methods_are_frozen_settings():
    method = Script(keep=64)
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.keep = 3
    assert method == Script(keep=64) != Script(keep=63)
    assert hash(method) == hash(Script(keep=64))
    assert (method.tau, method.gamma, method.graph, method.kernel, method.fusion, method.rho, method.relevance) == (
        *(0.3, 5.0, "bipartite", "s_prime", "released", 0.5, "auto"),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        *({"graph": "grid"}, {"kernel": "l"}, {"fusion": "sum"}, {"relevance": "siglip"}, {"sign": 0}, {"sign": True}),
        *({"tau": 2.0}, {"tau": float("nan")}, {"gamma": -1.0}, {"gamma": float("inf")}, {"rho": 0.0}, {"rho": 1.5}),
    ],
)
def test_wrong_settings_are_refused_at_construction(wrong):
    (name,) = wrong
    with pytest.raises(ValueError, match=name):
        Script(**wrong)


def test_the_registry():
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


def test_methods_of_others(monkeypatch):
    @dataclasses.dataclass(frozen=True)
    class First(Random):
        name = "first"

    class Point:
        name = "first"

        def load(self):
            return First

    monkeypatch.setattr("vlprune.methods._METHODS", dict(vars(__import__("vlprune.methods").methods)["_METHODS"]))
    monkeypatch.setattr("vlprune.methods.entry_points", lambda group: [Point()] if group == "vlprune.methods" else [])
    assert "first" in list_methods()
    assert get_method("first", keep=2) == First(keep=2)
    register_method(First)
    assert get_method("first") == First()


def test_random_depends_on_seed_and_size_alone():
    def kept(seed, images, n):
        return Random(keep=5, seed=seed).select(TokenView(torch.rand(images, n, 2), (1, n)), None).kept

    torch.manual_seed(1)
    one, many = kept(0, 1, 30), kept(0, 4, 30)
    assert torch.equal(many, one.expand(4, -1))
    assert not torch.equal(one, kept(1, 1, 30))
    assert not torch.equal(one, kept(0, 1, 31))
    assert (one.diff(dim=1) > 0).all()

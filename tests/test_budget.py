"""Budgets: how many tokens to keep, as a number or a ratio."""

import pytest

from vlprune import Budget, Random, Script


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

"""Budgets: how many tokens to keep, as a number or a ratio."""

from dataclasses import replace

import pytest

from vlprune import Budget, FastV, PyramidDrop, Random, Script, SparseVLM, SparseVLMPlus, get_method


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


@pytest.mark.parametrize("method", [FastV(), FastV(layer=3), PyramidDrop(), SparseVLM(), SparseVLMPlus()])
@pytest.mark.parametrize(("n", "layers"), [(576, 32), (100, 28), (7, 4)])
def test_a_layer_average_is_the_nearest_there_is(method, n, layers):
    averages = [replace(method, keep=keep).accounting(n, layers).layer_average for keep in range(1, n + 1)]
    for average in range(1, n + 1, max(1, n // 9)):
        asked = replace(method, keep=Budget(layer_average=average))
        if average < averages[0]:
            with pytest.raises(
                ValueError, match=f"keep={average} tokens per layer on average: {method.name} cannot go"
            ):
                asked.accounting(n, layers)
        else:
            found = asked.accounting(n, layers).layer_average
            assert abs(found - average) == min(abs(one - average) for one in averages)


def test_layer_averages_of_papers():
    """FastV's presets are what the average finds; two full layers of 32 leave no room for 32 tokens of 576."""
    for average in (192, 128, 64):
        preset = get_method("fastv", preset=str(average)).layer_budgets(576, 32)
        assert FastV(keep=Budget(layer_average=average)).layer_budgets(576, 32) == preset
    with pytest.raises(ValueError, match=r"fastv cannot go below 36.9 for 576 tokens in an LLM of 32 layers\."):
        FastV(keep=Budget(layer_average=32)).layer_budgets(576, 32)
    assert Random(keep=Budget(layer_average=64)).accounting(576, 32) == (64, 64.0)
    two = Random(keep=192) + FastV(keep=Budget(layer_average=64))
    assert two.accounting(576, 32).layer_average == 63.5625  # 55 tokens; 56 are 64.5

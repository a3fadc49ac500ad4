"""The statistics, against scipy's and against what must hold."""

import numpy as np
import pytest

from vlprune.evaluation.stats import (
    bootstrap_interval,
    bootstrap_means,
    mcnemar,
    paired_tests,
    pearson,
    relative_accuracy,
    spearman,
    wilson_interval,
)

stats = pytest.importorskip("scipy.stats")


@pytest.mark.parametrize(("right", "asked"), [(0, 7), (7, 7), (590, 600), (1, 3)])
def test_wilson_is_scipy_s(right, asked):
    wanted = stats.binomtest(right, asked).proportion_ci(method="wilson")
    assert wilson_interval(right, asked) == pytest.approx((wanted.low, wanted.high), abs=1e-5)


def test_mcnemar_is_the_binomial_test_of_what_differs():
    dice = np.random.default_rng(0)
    a, b = dice.random(200) < 0.9, dice.random(200) < 0.8
    only_a, only_b, p = mcnemar(a.tolist(), b.tolist())
    assert (only_a, only_b) == (int((a & ~b).sum()), int((b & ~a).sum()))
    assert p == pytest.approx(stats.binomtest(only_a, only_a + only_b).pvalue)
    assert mcnemar([True], [True]) == (0, 0, 1.0)


def test_correlations_are_scipy_s():
    dice = np.random.default_rng(1)
    a, b = dice.integers(0, 5, 60), dice.integers(0, 5, 60)  # with many ties
    assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic)
    assert pearson(a, b) == pytest.approx(stats.pearsonr(a, b).statistic)
    assert spearman([1, 1, 1], [1, 2, 3]) == 0


def test_paired_tests():
    a, b = [0.9, 0.8, 0.95, 0.7, 0.85, 0.9], [0.8, 0.81, 0.9, 0.6, 0.8, 0.7]
    t, wilcoxon = paired_tests(a, b)
    assert t == pytest.approx(stats.ttest_rel(a, b, alternative="greater").pvalue)
    assert wilcoxon == pytest.approx(stats.wilcoxon(a, b, alternative="greater").pvalue)
    assert paired_tests(b, a)[0] == pytest.approx(1 - t)
    assert paired_tests(a, a) == (1.0, 1.0)
    assert paired_tests([1.0, 0.5], [0.5, 0.0])[0] is None  # no spread: t is no number
    assert paired_tests([0.5, 0.0], [1.0, 0.5])[0] is None


def test_the_bootstrap_draws_images_and_not_questions():
    """Six questions about one image are one draw: the mean spreads as that of 30 images, not of 180 questions."""
    dice = np.random.default_rng(2)
    by_image = (dice.random(30) < 0.5).astype(float)
    outcomes, groups = np.repeat(by_image, 6), np.repeat([f"{i}" for i in range(30)], 6)
    spread = bootstrap_means([outcomes], list(groups))[:, 0].std()
    assert spread == pytest.approx(by_image.std() / 30**0.5, rel=0.1)


def test_relative_is_paired():
    unpruned = [True] * 50 + [False] * 50
    groups = [str(i) for i in range(100)]
    share, (low, high) = relative_accuracy([True] * 40 + [False] * 60, unpruned, groups)
    assert share == 0.8
    assert low < 0.8 < high
    assert bootstrap_interval(np.arange(101), groups, (0, 100)) == (2.5, 97.5)


def test_no_interval_has_a_width_of_zero():
    """Where the bootstrap has no spread, Wilson's score says how many images may be unlike those seen."""
    right, groups = [True] * 50, [str(i) for i in range(50)]
    low, high = wilson_interval(50, 50)
    assert relative_accuracy(right, right, groups) == (1.0, (pytest.approx(low), pytest.approx(high)))
    share, (low, high) = relative_accuracy([False] * 50, right, groups)
    assert (share, low) == (0.0, 0.0)
    assert high == pytest.approx(wilson_interval(0, 50)[1])
    half = [True, False] * 25
    _, (low, high) = relative_accuracy(half, half, groups)
    assert low == pytest.approx(1 - wilson_interval(0, 50)[1])
    assert high == pytest.approx(1 + wilson_interval(0, 50)[1])  # at most twice as many can be right
    for outcomes in (half, right):  # one image tells next to nothing
        _, (low, high) = relative_accuracy(outcomes, outcomes, ["one"] * 50)
        assert high - low > 0.7
    means = bootstrap_means([[0.1] * 3, [0.3] * 3], ["a", "b", "c"])
    low, high = bootstrap_interval(means[:, 0] - means[:, 1], ["a", "b", "c"], (-1, 1))
    assert low < -0.6 < -0.2 < 0.4 < high


def test_relative_to_nothing():
    assert relative_accuracy([True, False], [False, False], ["a", "b"]) is None
    share, (low, high) = relative_accuracy([True, True, False], [True, False, False], ["a", "b", "c"])
    assert share == 2
    assert 0 <= low < high <= 3  # samples without a right answer are left out, and not a share of 10 to the 12

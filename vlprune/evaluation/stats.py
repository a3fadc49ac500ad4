"""Intervals and tests for 0/1 outcomes, and for a mean per seed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from vlprune.errors import UserError

RESAMPLES = 2000


def wilson_interval(right: int, asked: int) -> tuple[float, float]:
    """95 % interval of a share, by Wilson's score (1927): never outside [0, 1], and not of width 0 at its ends.

    >>> [round(x, 3) for x in wilson_interval(10, 10)]
    [0.722, 1.0]
    """
    z, p = 1.959964, right / asked
    middle = (p + z * z / (2 * asked)) / (1 + z * z / asked)
    half = z / (1 + z * z / asked) * math.sqrt(p * (1 - p) / asked + z * z / (4 * asked * asked))
    return max(0.0, middle - half), min(1.0, middle + half)


def bootstrap_means(values: Sequence[Sequence[float]], images: Sequence[str], seed: int = 0) -> np.ndarray:
    """(RESAMPLES, k) means of k rows of outcomes in bootstrap samples of the images, so that pairs stay together.

    Questions about one image are not independent, so images are drawn and not questions.

    >>> float(bootstrap_means([[1, 1, 1]], ["a", "a", "b"]).min())
    1.0
    """
    _, at = np.unique(np.asarray(images), return_inverse=True)
    count = int(at.max()) + 1
    sums = np.stack([np.bincount(at, np.asarray(row, float), count) for row in values], 1)
    sizes = np.bincount(at, minlength=count).astype(float)
    draws = np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
    means: np.ndarray = (draws @ sums) / (draws @ sizes)[:, None]
    return means


def bootstrap_interval(
    resampled: np.ndarray, images: Sequence[str], within: tuple[float, float]
) -> tuple[float, float]:
    """95 % interval of a mean that was resampled over these images: its 2.5 and 97.5 percentiles.

    Where all resamples agree, because there is one image or all are alike, percentiles would claim certainty. Then as
    many images may be unlike those seen as Wilson's score allows for 0 of so many, anywhere `within` its bounds.

    >>> bootstrap_interval(np.linspace(0, 1, 1001), ["a", "b"], (0, 1))
    (0.025, 0.975)
    >>> [round(end, 3) for end in bootstrap_interval(np.ones(9), ["a", "b", "c"], (0, 1))]
    [0.439, 1.0]
    """
    low, high = (float(end) for end in np.percentile(resampled, [2.5, 97.5]))
    if high - low > 1e-9:
        return low, high
    unseen = wilson_interval(0, len(set(images)))[1]
    return low - unseen * (low - within[0]), high + unseen * (within[1] - high)


def relative_accuracy(
    pruned: Sequence[bool], unpruned: Sequence[bool], images: Sequence[str]
) -> tuple[float, tuple[float, float]] | None:
    """The accuracy as a share of that with all tokens, and its 95 % interval by a paired bootstrap over images.

    None where no answer with all tokens is right.
    """
    if not any(unpruned):
        return None
    means = bootstrap_means([pruned, unpruned], images)
    means = means[means[:, 1] > 0]
    within = (0.0, len(unpruned) / sum(unpruned))
    return sum(pruned) / sum(unpruned), bootstrap_interval(means[:, 0] / means[:, 1], images, within)


def mcnemar(a: Sequence[bool], b: Sequence[bool]) -> tuple[int, int, float]:
    """McNemar's test: how often only a is right, how often only b, and the exact two-sided p of that by chance.

    >>> mcnemar([1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0])
    (6, 0, 0.03125)
    """
    only_a = sum(x and not y for x, y in zip(a, b))
    only_b = sum(y and not x for x, y in zip(a, b))
    n, k = only_a + only_b, min(only_a, only_b)
    tail = sum(math.comb(n, i) for i in range(k + 1)) / 2**n
    return only_a, only_b, min(1.0, 2 * tail)


def paired_tests(a: Sequence[float], b: Sequence[float]) -> tuple[float | None, float]:
    """One-sided p values that a is above b, pair by pair: the t-test's, and Wilcoxon's signed ranks'.

    The t-test has none where all differences are the same, so that there is no spread to compare them with.
    """
    stats = import_scipy_stats()
    if all(x == y for x, y in zip(a, b)):
        return 1.0, 1.0
    alike = len({round(x - y, 12) for x, y in zip(a, b)}) == 1
    t = None if alike else float(stats.ttest_rel(a, b, alternative="greater").pvalue)
    return t, float(stats.wilcoxon(a, b, alternative="greater").pvalue)


def import_scipy_stats() -> Any:
    """`scipy.stats`; raises `UserError` where scipy is not installed."""
    try:
        from scipy import stats
    except ImportError:
        raise UserError("this study needs scipy: pip install 'vlprune[studies]'.") from None
    return stats


def spearman(a: Any, b: Any) -> float:
    """The rank correlation of two arrays; ties share their mean rank. 0 where one of them is constant.

    >>> spearman([1, 2, 3], [10, 20, 30]), spearman([1, 2, 3], [3, 2, 1])
    (1.0, -1.0)
    """

    def ranks(values: Any) -> np.ndarray:
        _, at, count = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
        middle: np.ndarray = (count.cumsum() - (count - 1) / 2)[at]
        return middle

    return pearson(ranks(a), ranks(b))


def pearson(a: Any, b: Any) -> float:
    """The correlation of two arrays, 0 where one of them is constant."""
    x, y = (np.asarray(values, float) - np.asarray(values, float).mean() for values in (a, b))
    size = float(np.sqrt((x * x).sum() * (y * y).sum()))
    return round(float((x * y).sum()) / size, 12) if size > 0 else 0.0


def format_p(p: float) -> str:
    """A p value with two digits; one too small for a float is said to be below the smallest.

    >>> format_p(0.0123), format_p(3.4e-95), format_p(0.0)
    ('0.012', '3.4e-95', '<1e-300')
    """
    return f"{p:.2g}" if p > 0 else "<1e-300"

"""Histograms and correlations that are added to, image by image: what they hold does not grow."""

from __future__ import annotations

import numpy as np

FINE = 2000  # bins of a histogram
FINE_SIMILARITY, FINE_ENTROPY = 800, 1000  # bins of a correlation's two axes


class RunningHistogram:
    """Counts of values between two ends; the mean, and the share above a value.

    >>> seen = RunningHistogram(-1, 1)
    >>> seen.add(np.array([0.25, 0.75])), seen.add(np.array([0.5]))
    (None, None)
    >>> seen.total, seen.mean, round(seen.share_above(0.5), 3)
    (3, 0.5, 0.333)
    """

    def __init__(self, low: float, high: float) -> None:
        self.edges = np.linspace(low, high, FINE + 1)
        self.counts = np.zeros(FINE, np.int64)
        self.sum, self.lowest = 0.0, float(high)

    def add(self, values: np.ndarray) -> None:
        """Count some values; those outside the ends, by rounding, count as the ends."""
        inside = np.clip(values, self.edges[0], self.edges[-1])
        # np.histogram counts a value on an edge upwards; here an edge belongs to the bin below, for `share_above`
        at = np.clip(np.searchsorted(self.edges, inside, side="left") - 1, 0, FINE - 1)
        self.counts += np.bincount(at, minlength=FINE)
        self.sum += float(values.sum(dtype=np.float64))
        self.lowest = min(self.lowest, float(inside.min(initial=self.lowest)))

    @property
    def total(self) -> int:
        """How many values were counted."""
        return int(self.counts.sum())

    @property
    def mean(self) -> float:
        """Their mean."""
        return self.sum / self.total if self.total else 0.0

    def share_above(self, value: float) -> float:
        """The share of values above one that is an edge of the histogram."""
        at = int(np.searchsorted(self.edges, value - 1e-9))
        return float(self.counts[at:].sum() / self.total) if self.total else 0.0

    def coarse(self, bins: int) -> tuple[np.ndarray, np.ndarray]:
        """Densities in so many bins, which divide `FINE`, and their edges."""
        counts = self.counts.reshape(bins, -1).sum(1)
        edges = self.edges[:: FINE // bins]
        return counts / max(self.total, 1) / np.diff(edges), edges


class RunningCorrelation:
    """The correlation of pairs: Pearson's from running sums, Spearman's from a fine two-dimensional histogram.

    Values in one bin share their mean rank, so Spearman's is exact but for the width of a bin.

    >>> seen = RunningCorrelation((0, 4), (0, 16))
    >>> seen.add(np.array([1.0, 2.0, 3.0]), np.array([1.0, 4.0, 9.0]))
    >>> round(seen.pearson, 4), round(seen.spearman, 4), round(seen.mean_y, 4)
    (0.9897, 1.0, 4.6667)
    """

    def __init__(self, x: tuple[float, float], y: tuple[float, float]) -> None:
        self.ends = np.array([x, y])
        self.counts = np.zeros((FINE_SIMILARITY, FINE_ENTROPY), np.int64)
        self.sums = np.zeros(5)  # of x, y, xx, yy, xy
        self.total = 0

    def add(self, x: np.ndarray, y: np.ndarray) -> None:
        """Count pairs; values outside the ends, by rounding, count as the ends."""
        x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
        (x_low, x_high), (y_low, y_high) = self.ends
        i = np.clip((x - x_low) / (x_high - x_low) * FINE_SIMILARITY, 0, FINE_SIMILARITY - 1).astype(int)
        j = np.clip((y - y_low) / (y_high - y_low) * FINE_ENTROPY, 0, FINE_ENTROPY - 1).astype(int)
        np.add.at(self.counts, (i, j), 1)
        self.sums += [x.sum(), y.sum(), x @ x, y @ y, x @ y]
        self.total += len(x)

    @property
    def mean_y(self) -> float:
        """The mean of the second values."""
        return float(self.sums[1] / max(self.total, 1))

    @property
    def pearson(self) -> float:
        """The correlation, 0 where one of both is constant."""
        x, y, xx, yy, xy = self.sums / max(self.total, 1)
        spread = max(xx - x * x, 0.0) * max(yy - y * y, 0.0)
        return float((xy - x * y) / np.sqrt(spread)) if spread > 1e-20 else 0.0

    @property
    def spearman(self) -> float:
        """The rank correlation, of ranks by bins."""
        i, j = self.counts.nonzero()
        weights = self.counts[i, j]
        ranks = []
        for axis, at in ((1, i), (0, j)):
            sizes = self.counts.sum(axis)
            ranks.append((sizes.cumsum() - (sizes - 1) / 2)[at])
        means = [float((weights * rank).sum() / max(self.total, 1)) for rank in ranks]
        root = np.sqrt(weights)
        a, b = (root * (rank - mean) for rank, mean in zip(ranks, means))
        size = float(np.sqrt((a * a).sum() * (b * b).sum()))
        return float((a * b).sum()) / size if size > 0 else 0.0

    def coarse(self, columns: int, rows: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Counts (columns, rows) in larger bins, which divide the fine ones, and the edges of both axes."""
        x_step, y_step = FINE_SIMILARITY // columns, FINE_ENTROPY // rows
        counts = self.counts[: columns * x_step, : rows * y_step].reshape(columns, x_step, rows, y_step).sum((1, 3))
        xs, ys = (np.linspace(low, high, number + 1) for (low, high), number in zip(self.ends, (columns, rows)))
        return counts, xs, ys

"""Whether tokens repeat their neighbours, and whether cosine similarity is a fair measure of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlprune.evaluation.answers import Evaluation
from vlprune.evaluation.image_tokens import (
    ImageTokens,
    cosine_matrix,
    grid_distances,
    neighbour_mask,
    neighbour_similarity,
    stream_image_tokens,
)
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.show.style import COLORS, LABEL_POINTS, SMALL_POINTS, dress, new_figure
from vlprune.studies.running_statistics import RunningCorrelation, RunningHistogram

NEEDS, QUESTIONS, KEEP = "images", (200, 8), ()
BINS, EPS = 20, 1e-8
NEAR, FAR = "next to each other", "random, farther apart"
HIGHEST_ENTROPY = 2.5  # nats; nine tokens have log 9 = 2.2 at most


def study(evaluation: Evaluation) -> StudyResult:
    """Cosine similarity against Manhattan distance, neighbours against random pairs, and against local entropy.

    What is held does not grow with the number of images. Where a model cuts images into tiles, each tile is a grid of
    its own.
    """
    found = Redundancy()
    for image in stream_image_tokens(evaluation, tiles="apart"):
        found.add(image)
    tables = [_distance_table(found), _pairs_table(found.pairs), _entropy_table(found.entropies)]
    data = {
        "by_distance": {str(d): mean for d, (mean, _) in found.by_distance.items()},
        "above_half": {name: values.share_above(0.5) for name, values in found.pairs.items()},
        "correlation": {
            name: {"pearson": one.pearson, "spearman": one.spearman} for name, one in found.entropies.items()
        },
        "images": len(found.names),
        "grids": found.grids,
    }
    return StudyResult("Redundancy", tables, {"redundancy": _figure(found)}, data)


class Redundancy:
    """Running sums over images: cosines by distance, of neighbours and of random pairs, and against local entropy.

    `grids` are the images and tiles that were added.
    """

    def __init__(self) -> None:
        self.grids = 0
        self.names: set[str] = set()
        self.sums, self.counts = torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)
        self.pairs = {name: RunningHistogram(-1, 1) for name in (NEAR, FAR)}
        self.entropies = {
            name: RunningCorrelation((-1, 1), (-EPS, HIGHEST_ENTROPY))
            for name in ("component of the image", "component of the neighbourhood")
        }

    def add(self, image: ImageTokens) -> None:
        """Count the tokens of one image, or of one tile."""
        if len(image.features) < 2:
            return
        self.grids += 1
        self.names.add(image.question.image_name)
        cosine = cosine_matrix(image.features)
        self._add_distances(cosine, image.grid)
        self._add_pairs(cosine, image)
        similar = neighbour_similarity(cosine, image.grid)
        for running, entropy in zip(self.entropies.values(), (image_entropy(image), neighbourhood_entropy(image))):
            running.add(similar.numpy(), entropy.numpy())

    def _add_distances(self, cosine: Tensor, grid: tuple[int, int]) -> None:
        far = grid_distances(grid).sum(0).flatten()
        longest = max(len(self.sums), int(far.max()) + 1)
        sums, counts = torch.zeros(longest, dtype=torch.float64), torch.zeros(longest, dtype=torch.int64)
        sums[: len(self.sums)], counts[: len(self.counts)] = self.sums, self.counts
        self.sums = sums + torch.bincount(far, cosine.flatten().double(), longest)
        self.counts = counts + torch.bincount(far, minlength=longest)

    def _add_pairs(self, cosine: Tensor, image: ImageTokens) -> None:
        """Cosines of neighbouring tokens, and of as many random pairs that are farther apart."""
        upper, beside = torch.ones_like(cosine).triu(1).bool(), neighbour_mask(image.grid)
        near, others = cosine[beside & upper], cosine[~beside & upper]
        self.pairs[NEAR].add(near.numpy())
        if len(others):
            drawn = torch.Generator().manual_seed(image.question.number)
            self.pairs[FAR].add(others[torch.randint(len(others), (len(near),), generator=drawn)].numpy())

    @property
    def by_distance(self) -> dict[int, tuple[float, float]]:
        """Mean cosine and pairs per grid at each Manhattan distance."""
        return {
            d: (float(self.sums[d] / self.counts[d]), float(self.counts[d]) / 2 / self.grids)
            for d in range(1, len(self.sums))
        }


def _distance_table(found: Redundancy) -> ResultTable:
    by_distance = found.by_distance
    shown = [d for d in (1, 2, 3, 5, 8, 12, 16, 24, 32) if d in by_distance] + [max(by_distance)]
    rows = [[str(d), f"{by_distance[d][0]:.3f}", f"{by_distance[d][1]:,.0f}"] for d in dict.fromkeys(shown)]
    images = f"{len(found.names):,} images"
    tiled = found.grids > len(found.names)
    note = f"{images}, {found.grids:,} tiles, each a grid of its own." if tiled else f"{images}."
    columns = ["Manhattan distance", "mean cosine", "pairs a tile" if tiled else "pairs an image"]
    return ResultTable("Similarity against distance", columns, rows, note)


def _pairs_table(pairs: Mapping[str, RunningHistogram]) -> ResultTable:
    rows = [[name, f"{v.mean:.3f}", f"{100 * v.share_above(0.5):.1f} %"] for name, v in pairs.items() if v.total]
    note = "Next to each other: among the eight around a token. As many random pairs as neighbouring ones."
    return ResultTable("Neighbours and random pairs", ["pairs", "mean cosine", "above 0.5"], rows, note)


def _entropy_table(entropies: Mapping[str, RunningCorrelation]) -> ResultTable:
    rows = [
        [name, f"{one.mean_y:.3f}", f"{one.pearson:+.3f}", f"{one.spearman:+.3f}"] for name, one in entropies.items()
    ]
    columns = ["entropy of 3 × 3 tokens on the first principal", "mean, nats", "Pearson's r", "Spearman's ρ"]
    note = (
        f"{BINS} bins of equal width over the range of the image or of the neighbourhood. Similarity: a token's "
        "mean cosine to the tokens around it. The paper expects a negative correlation."
    )
    return ResultTable("Local entropy and similarity", columns, rows, note)


def image_entropy(one: ImageTokens) -> Tensor:
    """(n,) entropy of each 3 × 3 neighbourhood on the image's first principal component, in bins over the image."""
    centred = one.features - one.features.mean(0)
    values = centred @ torch.linalg.svd(centred, full_matrices=False)[2][0]
    low, high = values.min(), values.max()
    bins = ((values - low) / (high - low).clamp(min=1e-12) * BINS).long().clamp(max=BINS - 1)
    around = neighbour_mask(one.grid) | torch.eye(len(bins), dtype=torch.bool)
    return _entropy(around.float() @ torch.nn.functional.one_hot(bins, BINS).float())


def neighbourhood_entropy(one: ImageTokens) -> Tensor:
    """(n,) entropy of each 3 × 3 neighbourhood on its own first principal component, in bins over its own range."""
    around = neighbour_mask(one.grid) | torch.eye(len(one.features), dtype=torch.bool)
    counts = torch.zeros(len(one.features), BINS)
    sizes = around.sum(1)
    for size in sizes.unique().tolist():  # corners, edges and the inside
        own = (sizes == size).nonzero()[:, 0]
        near = one.features[around[own].nonzero()[:, 1].view(len(own), size)]
        centred = near - near.mean(1, keepdim=True)
        values = (centred @ torch.linalg.svd(centred, full_matrices=False)[2][:, 0, :, None])[..., 0]
        low, high = values.amin(1, keepdim=True), values.amax(1, keepdim=True)
        bins = ((values - low) / (high - low).clamp(min=1e-12) * BINS).long().clamp(max=BINS - 1)
        counts[own] = torch.nn.functional.one_hot(bins, BINS).sum(1).float()
    return _entropy(counts)


def _entropy(counts: Tensor) -> Tensor:
    """(n,) entropy in nats of rows of counts (n, bins)."""
    p = counts / counts.sum(1, keepdim=True) + EPS
    return -(p * p.log()).sum(1)


def _figure(found: Redundancy) -> Any:
    from matplotlib.colors import LogNorm

    figure = new_figure(6.2, "Do tokens repeat their neighbours? Does cosine tell?")
    panels: dict[str, Any] = figure.subplot_mosaic([["distance", "pairs"], ["entropy", "entropy"]])
    by_distance = found.by_distance
    panels["distance"].plot(list(by_distance), [mean for mean, _ in by_distance.values()], color=COLORS[0])
    dress(panels["distance"], x="Manhattan distance, tokens", y="mean cosine", title="similarity against distance")
    for (name, values), color, line in zip(found.pairs.items(), COLORS, ("-", "--")):
        panels["pairs"].stairs(*values.coarse(80), color=color, linewidth=1.5, linestyle=line, label=name)
    lowest = min(values.lowest for values in found.pairs.values() if values.total)
    panels["pairs"].set_xlim(lowest, 1)
    dress(panels["pairs"], x="cosine", y="density", title="pairs of tokens")
    panels["pairs"].legend(fontsize=SMALL_POINTS, frameon=False)
    counts, xs, ys = found.entropies["component of the image"].coarse(80, 40)
    shown = panels["entropy"].pcolormesh(xs, ys, np.ma.masked_equal(counts.T, 0), norm=LogNorm(), cmap="viridis")
    bar = figure.colorbar(shown, ax=panels["entropy"], pad=0.01)
    bar.set_label("tokens (log scale)", fontsize=LABEL_POINTS)
    bar.ax.tick_params(labelsize=SMALL_POINTS)
    panels["entropy"].set_xlim(xs[np.flatnonzero(counts.sum(1))[0]], 1)
    x = "mean cosine to the tokens around"
    dress(panels["entropy"], x=x, y="local entropy, nats", title="how mixed the 3 × 3 tokens around are")
    return figure

"""Whether tokens repeat their neighbours, and whether cosine similarity is a fair measure of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlprune.evaluation.answers import Evaluation
from vlprune.evaluation.image_tokens import (
    ImageTokens,
    collect_image_tokens,
    cosine_matrix,
    grid_distances,
    neighbour_mask,
    neighbour_similarity,
)
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import pearson, spearman

NEEDS, QUESTIONS, KEEP = "images", (200, 8), ()
BINS, EPS = 20, 1e-8
EDGES = np.linspace(-1, 1, 81)


def study(evaluation: Evaluation) -> StudyResult:
    """Cosine similarity against Manhattan distance, neighbours against random pairs, and against local entropy."""
    images = collect_image_tokens(evaluation)
    by_distance = similarity_by_distance(images)
    near, random = _pair_cosines(images)
    similar = torch.cat([neighbour_similarity(one) for one in images])
    entropies = {
        "component of the image": torch.cat([image_entropy(one) for one in images]),
        "component of the neighbourhood": torch.cat([neighbourhood_entropy(one) for one in images]),
    }
    correlation = {
        name: {"pearson": pearson(values.numpy(), similar.numpy()), "spearman": spearman(values, similar)}
        for name, values in entropies.items()
    }
    pairs = {"next to each other": near, "random, farther apart": random}
    tables = [
        _distance_table(by_distance, len(images)),
        _pairs_table(pairs),
        _entropy_table({name: float(values.mean()) for name, values in entropies.items()}, correlation),
    ]
    data = {
        "by_distance": {str(d): mean for d, (mean, _) in by_distance.items()},
        "above_half": {name: float((v > 0.5).mean()) for name, v in pairs.items()},
        "correlation": correlation,
    }
    drawn = _figure(by_distance, near, random, entropies["component of the image"], similar)
    return StudyResult("Redundancy", tables, {"redundancy": drawn}, data)


def _distance_table(by_distance: Mapping[int, tuple[float, float]], images: int) -> ResultTable:
    shown = [d for d in (1, 2, 3, 5, 8, 12, 16, 24, 32) if d in by_distance] + [max(by_distance)]
    rows = [[str(d), f"{by_distance[d][0]:.3f}", f"{by_distance[d][1]:,.0f}"] for d in dict.fromkeys(shown)]
    columns = ["Manhattan distance", "mean cosine", "pairs an image"]
    return ResultTable("Similarity against distance", columns, rows, f"{images} images.")


def _pairs_table(pairs: Mapping[str, np.ndarray]) -> ResultTable:
    rows = [[name, f"{v.mean():.3f}", f"{100 * (v > 0.5).mean():.1f} %"] for name, v in pairs.items()]
    note = "Next to each other: among the eight around a token. As many random pairs as neighbouring ones."
    return ResultTable("Neighbours and random pairs", ["pairs", "mean cosine", "above 0.5"], rows, note)


def _entropy_table(means: Mapping[str, float], correlation: Mapping[str, Mapping[str, float]]) -> ResultTable:
    rows = [
        [name, f"{means[name]:.3f}", f"{one['pearson']:+.3f}", f"{one['spearman']:+.3f}"]
        for name, one in correlation.items()
    ]
    columns = ["entropy of 3 × 3 tokens on the first principal", "mean, nats", "Pearson's r", "Spearman's ρ"]
    note = (
        f"{BINS} bins of equal width over the range of the image or of the neighbourhood. Similarity: a token's "
        "mean cosine to the tokens around it. The paper expects a negative correlation."
    )
    return ResultTable("Local entropy and similarity", columns, rows, note)


def similarity_by_distance(images: Sequence[ImageTokens]) -> dict[int, tuple[float, float]]:
    """Mean cosine and pairs per image at each Manhattan distance."""
    sums: dict[int, float] = {}
    counts: dict[int, int] = {}
    for one in images:
        far, cosine = grid_distances(one.grid).sum(0).flatten(), cosine_matrix(one.features).flatten()
        total, count = torch.bincount(far, cosine), torch.bincount(far)
        for d in range(1, len(count)):
            sums[d] = sums.get(d, 0.0) + float(total[d])
            counts[d] = counts.get(d, 0) + int(count[d])
    return {d: (sums[d] / counts[d], counts[d] / 2 / len(images)) for d in sums}


def _pair_cosines(images: Sequence[ImageTokens]) -> tuple[np.ndarray, np.ndarray]:
    """Cosines of neighbouring tokens, and of as many random pairs that are farther apart."""
    near, random = [], []
    for one in images:
        cosine, upper = cosine_matrix(one.features), torch.ones(len(one.features), len(one.features)).triu(1).bool()
        beside = neighbour_mask(one.grid)
        near.append(cosine[beside & upper])
        others = cosine[~beside & upper]
        drawn = torch.Generator().manual_seed(one.question.number)
        random.append(others[torch.randint(len(others), (len(near[-1]),), generator=drawn)])
    return torch.cat(near).numpy(), torch.cat(random).numpy()


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


def _figure(by_distance: Any, near: np.ndarray, random: np.ndarray, entropy: Tensor, similar: Tensor) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 3.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.plot(list(by_distance), [mean for mean, _ in by_distance.values()])
    left.set(xlabel="Manhattan distance", ylabel="mean cosine", title="similarity against distance")
    for name, values in (("next to each other", near), ("random", random)):
        middle.hist(values, EDGES, density=True, alpha=0.6, label=name)
    middle.set(xlabel="cosine", title="neighbours and random pairs", xlim=(min(near.min(), random.min()), 1))
    middle.legend(fontsize=8)
    right.hexbin(similar.numpy(), entropy.numpy(), gridsize=30, mincnt=1, bins="log", cmap="viridis")
    right.set(xlabel="mean cosine to neighbours", ylabel="local entropy, nats", title="entropy against similarity")
    return figure

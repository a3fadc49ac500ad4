"""How wide sets of tokens are, against how alike they are: the paper's envelope, and where real tokens lie under it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from vlprune.evaluation.answers import Evaluation
from vlprune.evaluation.image_tokens import ImageTokens, cosine_matrix, stream_image_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.selection import greedy_map_features
from vlprune.show.style import COLORS, MARKERS, SMALL_POINTS, add_legend, dress, new_figure

NEEDS, QUESTIONS, KEEP = "images", (100, 8), ()
SIZE = 5  # tokens of a set: k of the paper's figure
RANDOM_SETS = 20  # of each image
NAMES = {
    "random": "random tokens",
    "neighbours": "consecutive tokens",
    "greedy": "the DPP's greedy",
}


class TokenSet(NamedTuple):
    """A set of k tokens: the mean of its cosines, their least and largest, and the determinant of its kernel."""

    mean: float
    low: float
    high: float
    determinant: float


def study(evaluation: Evaluation) -> StudyResult:
    """det L_S of sets of five tokens of each image against their mean cosine, and the most that it can be."""
    found: dict[str, list[TokenSet]] = {name: [] for name in NAMES}
    images = 0
    for image in stream_image_tokens(evaluation):
        images += 1
        for name, sets in token_sets(image).items():
            found[name] += [measure_set(image, tokens) for tokens in sets]
    data = {name: _summary(sets) for name, sets in found.items() if sets}
    return StudyResult("Envelope", [_table(data, images)], {"envelope": _figure(found)}, data)


def envelope(rho: Any, size: int = SIZE) -> Any:
    """The largest determinant of the cosines of `size` unit vectors whose mean cosine is `rho`, from −1/(k−1) to 1.

    (1 + (k − 1)ρ)(1 − ρ)^(k − 1): the paper's refined bound, which vectors reach if all their cosines are equal.

    >>> [round(float(envelope(rho)), 4) for rho in (-0.25, 0.0, 0.5, 1.0)]
    [0.0, 1.0, 0.1875, 0.0]
    """
    return (1 + (size - 1) * rho) * (1 - rho) ** (size - 1)


def token_sets(image: ImageTokens) -> dict[str, list[list[int]]]:
    """Sets of `SIZE` tokens of an image, by `NAMES`; an image with fewer tokens has none."""
    n = len(image.features)
    if n < SIZE:
        return {}
    drawn = np.random.default_rng(image.question.number)
    random = [drawn.choice(n, SIZE, replace=False).tolist() for _ in range(RANDOM_SETS)]
    starts = drawn.integers(0, n - SIZE + 1, RANDOM_SETS)
    greedy = greedy_map_features(image.features[None], torch.ones(1, n), SIZE)[0].tolist()
    return {"random": random, "neighbours": [list(range(s, s + SIZE)) for s in starts.tolist()], "greedy": [greedy]}


def measure_set(image: ImageTokens, tokens: Sequence[int]) -> TokenSet:
    """What the study knows of a set of tokens, in float64."""
    cosine = cosine_matrix(image.features[list(tokens)].double()).numpy()
    pairs = cosine[np.triu_indices(len(tokens), 1)]
    return TokenSet(float(pairs.mean()), float(pairs.min()), float(pairs.max()), max(float(np.linalg.det(cosine)), 0.0))


def _summary(sets: Sequence[TokenSet]) -> dict[str, float]:
    """Means over sets, and the share of the envelope that their determinants reach."""
    means, lows, highs, determinants = np.array(sets).T
    most = envelope(means, SIZE)
    return {
        "sets": len(sets),
        "mean_cosine": float(means.mean()),
        "spread": float((highs - lows).mean()),
        "determinant": float(determinants.mean()),
        "envelope": float(most.mean()),
        "share": float(np.mean(determinants[most > 1e-12] / most[most > 1e-12])) if (most > 1e-12).any() else 0.0,
        "largest_excess": float((determinants - most).max()),
    }


def _table(data: Mapping[str, Mapping[str, float]], images: int) -> ResultTable:
    rows = [
        [
            NAMES[name],
            f"{one['mean_cosine']:+.3f}",
            f"{one['spread']:.3f}",
            f"{one['determinant']:.3f}",
            f"{one['envelope']:.3f}",
            f"{100 * one['share']:.1f} %",
        ]
        for name, one in data.items()
    ]
    columns = [f"{SIZE} tokens", "mean cosine", "largest less least", "determinant", "envelope", "share of it"]
    note = (
        f"{images} images, means over sets. Envelope: (1 + (k − 1)ρ)(1 − ρ)^(k − 1) at each set's mean cosine ρ, which "
        "is reached where all cosines of the set are equal. Largest less least: how far they are from that; the "
        "paper's appendix takes it to be 0 for Script."
    )
    return ResultTable("Determinant and mean cosine", columns, rows, note)


def _figure(found: Mapping[str, Sequence[TokenSet]]) -> Any:
    figure = new_figure(4.4, f"How widely sets of {SIZE} tokens spread, against how alike their tokens are")
    axes = figure.subplots()
    rho, least = np.linspace(-1 / (SIZE - 1), 1, 400), -1 / (SIZE - 1)
    axes.axhline(1.0, color="grey", linewidth=1, label="AM–GM: 1")
    axes.plot(rho, envelope(rho), color="black", linestyle="--", label=f"envelope, k = {SIZE}")
    for (name, sets), color, marker in zip(found.items(), COLORS, MARKERS):
        points = np.array(sets).reshape(-1, 4)
        axes.scatter(points[:, 0], points[:, 3], s=12, alpha=0.5, color=color, marker=marker, label=NAMES[name])
    axes.axvline(least, color="grey", linestyle=":", linewidth=1)
    said = f"−1/(k − 1) = {least:g}"
    axes.annotate(said, (least - 0.01, 0.5), rotation=90, fontsize=SMALL_POINTS, va="center", ha="right")
    axes.set_ylim(-0.03, 1.08)
    x = "mean cosine of the set, ρ: 1 if all its tokens point the same way"
    dress(axes, x=x, y="determinant of its cosines:\n1 if all are at right angles")
    add_legend(figure, *axes.get_legend_handles_labels(), columns=3)
    return figure

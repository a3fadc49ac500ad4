"""What counts as redundant, at thresholds from 0.1 to 0.9."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import Tensor

from vlprune.evaluation.answers import Evaluation
from vlprune.evaluation.image_tokens import ImageTokens, cosine_matrix, neighbour_similarity, stream_image_tokens
from vlprune.evaluation.plots import plot_panels
from vlprune.evaluation.result import ResultTable, StudyResult

NEEDS, QUESTIONS, KEEP = "images", (100, 8), ()
TAUS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SHOWN = (0.1, 0.3, 0.5, 0.7, 0.9)
PICTURES = 4
COLUMNS = ["τ", "redundant", "with an edge", "edges a token"]
NOTE = (
    "{} images. Redundant: the mean cosine to the tokens around is τ or more, as in the paper's figure. Edges: in "
    "Script's graph of every other token against the rest."
)


def study(evaluation: Evaluation) -> StudyResult:
    """Masks of the tokens whose mean cosine to their neighbours reaches a threshold, and the graph's edges at it.

    Once for the tokens as they enter the LLM, which Script looks at, and once for the vision tower's states, which the
    paper's figure looks at, where the model shows them.
    """
    tokens, states, images = ThresholdCounts(), ThresholdCounts(), 0
    shown: list[list[tuple[str, Any]]] = []
    for one in stream_image_tokens(evaluation, tiles="refused"):
        near = tokens.add(one.features, one.grid)
        if one.tower is not None:
            states.add(one.tower, one.grid)
        if images < PICTURES:
            shown.append(_panels(one, near))
        images += 1
    data: dict[str, Any] = tokens.shares()
    tables = [_table("Redundancy at thresholds", data, images)]
    if states.total:
        own = states.shares()
        tables.append(_table("Redundancy at thresholds, of the vision tower's states", own, images))
        data = {tau: {**one, "tower": own[tau]} for tau, one in data.items()}
    title = "Which tokens count as redundant at a threshold τ, and their share"
    high = "redundant: mean cosine to the tokens around ≥ τ"
    figure = plot_panels(shown, title=title, low="not redundant", high=high)
    return StudyResult("Thresholds", tables, {"thresholds": figure}, data)


class ThresholdCounts:
    """Counts over images of tokens that are redundant at each threshold, that have an edge, and of their edges."""

    def __init__(self) -> None:
        self.total = 0
        self.redundant, self.connected, self.edges = (dict.fromkeys(TAUS, 0) for _ in range(3))

    def add(self, features: Tensor, grid: tuple[int, int]) -> Tensor:
        """Count the tokens (n, d) of one image; returns each one's mean cosine to its neighbours, (n,)."""
        cosine = cosine_matrix(features)
        near, met = neighbour_similarity(cosine, grid), cosine[0::2, 1::2]  # the bipartite graph's pairs
        self.total += len(features)
        for tau in TAUS:
            edge = met >= tau
            self.redundant[tau] += int((near >= tau).sum())
            self.connected[tau] += int(edge.any(1).sum() + edge.any(0).sum())
            self.edges[tau] += 2 * int(edge.sum())  # each is one of both its tokens
        return near

    def shares(self) -> dict[str, dict[str, float]]:
        """By threshold: the share of tokens that are redundant, that with an edge, and edges per token."""
        return {
            str(tau): {
                "redundant": self.redundant[tau] / self.total,
                "with_an_edge": self.connected[tau] / self.total,
                "edges": self.edges[tau] / self.total,
            }
            for tau in TAUS
        }


def _table(title: str, shares: Mapping[str, Mapping[str, float]], images: int) -> ResultTable:
    rows = [
        [tau, f"{100 * one['redundant']:.1f} %", f"{100 * one['with_an_edge']:.1f} %", f"{one['edges']:.1f}"]
        for tau, one in shares.items()
    ]
    return ResultTable(title, COLUMNS, rows, NOTE.format(images))


def _panels(one: ImageTokens, near: Tensor) -> list[tuple[str, Any]]:
    """An image, the similarity of its tokens to their neighbours, and the masks at some thresholds."""
    grid = near.reshape(one.grid).numpy()
    masks = [(f"τ = {tau}: {100 * (grid >= tau).mean():.0f} %", grid >= tau) for tau in SHOWN]
    picture = np.asarray(one.question.image())
    return [(f"image {one.question.image_name}", picture), ("mean cosine, bright is high", grid), *masks]

"""What counts as redundant, at thresholds from 0.1 to 0.9."""

from __future__ import annotations

import numpy as np
import torch

from vlprune.evaluation.answers import Evaluation
from vlprune.evaluation.image_tokens import collect_image_tokens, cosine_matrix, neighbour_similarity
from vlprune.evaluation.plots import plot_panels
from vlprune.evaluation.result import ResultTable, StudyResult

NEEDS, QUESTIONS, KEEP = "images", (100, 8), ()
TAUS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
SHOWN = (0.1, 0.3, 0.5, 0.7, 0.9)
PICTURES = 6


def study(evaluation: Evaluation) -> StudyResult:
    """Masks of the tokens whose mean cosine to their neighbours reaches a threshold, and the graph's edges at it."""
    images = collect_image_tokens(evaluation)
    near = torch.stack([neighbour_similarity(one) for one in images])
    edges: dict[float, list[torch.Tensor]] = {tau: [] for tau in TAUS}
    for one in images:
        met = cosine_matrix(one.features)[0::2, 1::2]  # the bipartite graph's pairs
        for tau in TAUS:
            edges[tau].append(torch.cat([(met >= tau).sum(1), (met >= tau).sum(0)]).float())
    data = {}
    for tau in TAUS:
        degree = torch.cat(edges[tau])
        data[str(tau)] = {
            "redundant": float((near >= tau).float().mean()),
            "with_an_edge": float((degree > 0).float().mean()),
            "edges": float(degree.mean()),
        }
    rows = [
        [tau, f"{100 * one['redundant']:.1f} %", f"{100 * one['with_an_edge']:.1f} %", f"{one['edges']:.1f}"]
        for tau, one in data.items()
    ]
    note = (
        f"{len(images)} images. Redundant: the mean cosine to the tokens around is τ or more, as in the paper's "
        "figure. Edges: in Script's graph of every other token against the rest."
    )
    table = ResultTable("Redundancy at thresholds", ["τ", "redundant", "with an edge", "edges a token"], rows, note)
    shown = []
    for one, values in zip(images[:PICTURES], near):
        grid = values.reshape(one.grid).numpy()
        masks = [(f"τ = {tau}: {100 * (grid >= tau).mean():.0f} %", grid >= tau) for tau in SHOWN]
        picture = np.asarray(one.question.image())
        shown.append([(f"image {one.question.image_name}", picture), ("mean cosine, red is high", grid), *masks])
    title = "Which tokens count as redundant at a threshold τ, and their share"
    high = "redundant: mean cosine to the tokens around ≥ τ"
    figure = plot_panels(shown, title=title, low="not redundant", high=high)
    return StudyResult("Thresholds", [table], {"thresholds": figure}, data)

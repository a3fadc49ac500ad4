"""Script as its authors' published code computes it, which is not what the paper describes."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from vlprune.methods.base import QueryMethod
from vlprune.methods.registry import register_method
from vlprune.selection import dot_scores
from vlprune.selection.checks import finite, require
from vlprune.selection.numerics import TIE, exact_float32, first_best, unit_vectors, wide
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class ScriptReleased(QueryMethod):
    """What the authors' code keeps: no graph, dot products as relevance, a greedy that never orthogonalises.

    That code also scores a similarity graph (all pairs, each token with itself too, τ = 0.2, γ = 1) and keeps its
    *most* redundant tokens, but its fusion tops the two modules' intersection up from the greedy's own m tokens. The
    result is those m tokens whatever the graph says, so no graph is computed here. What is left differs from
    `Script(fusion="released")` twice. Relevance is a dot product, not a cosine, before it is scaled to [0, 1], so long
    tokens count as more relevant. And the greedy never orthogonalises: choosing j takes L_ij² / v_j² from every v_i²,
    as if no token had been chosen before, so directions that the chosen tokens share are taken off more than once.

    Soon no v² is positive and that quotient means nothing; from there on nothing is taken off, and tokens follow by
    their v². `relevance` and `sign` are as in `Script`.

    >>> ScriptReleased(keep=16).keep
    16
    """

    name: ClassVar[str] = "script_released"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        relevance = self.relevance_scores(view, query)
        order = _greedy(view.features, relevance, self.count(view.n))
        return Selection.from_order(order, relevance=relevance)

    def relevance_scores(self, view: TokenView, query: Query | None) -> Tensor:
        if query is None:
            return super().relevance_scores(view, None)
        return _min_max_scaled(dot_scores(query.image, query.text, sign=query.sign))


def _min_max_scaled(raw: Tensor) -> Tensor:
    """Scores (B, n) to [0, 1] in each image; all 1 where they are equal."""
    low, high = raw.amin(1, keepdim=True), raw.amax(1, keepdim=True)
    span, size = high - low, raw.abs().amax(1, keepdim=True)
    return torch.where(span > TIE * size, (raw - low) / span.clamp(min=torch.finfo(torch.float32).tiny), 1.0)


def _greedy(features: Tensor, relevance: Tensor, k: int) -> Tensor:
    """(B, k) in order of choice. In float64, for v² is divided by and errors would grow from step to step."""
    with exact_float32(features.device):
        x = features.to(torch.float32)
        unit, length = unit_vectors(x)
        require(finite("features", x, "B n d", length))
        unit, r = unit.to(wide(x.device)), relevance.to(wide(x.device))
        every = torch.arange(x.shape[0], device=x.device)
        v2 = r * r * (length[:, :, 0] > 0)
        scale, chosen = v2.amax(1, keepdim=True), []
        for _ in range(k):
            j = first_best(v2, TIE * scale)
            chosen.append(j)
            own = v2[every, j][:, None]
            row = (unit @ unit[every, j][:, :, None])[:, :, 0] * r * r[every, j][:, None]  # L_j
            v2 = torch.where(own > TIE * scale, v2 - row * row / own, v2)
            v2[every, j] = -torch.inf
        return torch.stack(chosen, 1)

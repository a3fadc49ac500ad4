"""Script's steps in plain torch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vlprune.types import Selection

from .backend import Choices
from .checks import finite, require
from .dpp import allowed_relevance, greedy_units, kernel_weights, matrix_for_greedy
from .fusion import combine, found_in
from .graph import redundancy
from .numerics import ascending, exact_float32, unit_vectors
from .relevance import pool
from .relevance import relevance as relevance_to


def run(script: Callable[..., Selection], tensors: dict[str, Any], settings: dict[str, Any]) -> Selection:
    """`script(TorchBackend, **tensors, **settings)` in full float32."""
    with exact_float32(tensors["features"].device):
        return script(TorchBackend, **tensors, **settings)


class TorchBackend:
    """Unit vectors, relevance and kernel weights of a batch of images, and Script's steps on them."""

    def __init__(
        self,
        features: Tensor,
        *,
        query: Tensor | None,
        query_mask: Tensor | None,
        sign: int,
        relevance: Tensor | None,
        kernel: str,
    ) -> None:
        x = features.to(torch.float32)
        self.unit, length = unit_vectors(x)
        of_features = finite("features", x, "B n d", length)
        self.relevance: Tensor | None = None
        if query is not None:
            pooled, of_query = pool(query, query_mask)
            require(of_features, *of_query)
            self.relevance = weighing = relevance_to(x, length, pooled, sign)
        else:
            assert relevance is not None
            weighing = relevance.to(torch.float32)
            require(of_features, *allowed_relevance(weighing))
        self.weight, self.diagonal = kernel_weights(length, weighing, kernel)

    def redundancy(self, tau: float, gamma: float, graph: str, ranks: int | None) -> tuple[Tensor, Tensor | None]:
        """Redundancy (B, n), and all cosines (B, n, n) if a greedy of `ranks` steps is better off with them."""
        shared = ranks is not None and matrix_for_greedy(self.unit.shape[1], ranks, self.unit.device)
        cosines = self.unit @ self.unit.mT if shared else None
        return redundancy(self.unit, tau, gamma, graph, cosines), cosines

    def rank(self, redundancy: Tensor, *, given: bool) -> Tensor:
        """All tokens (B, n), the least redundant first."""
        values = redundancy.to(torch.float32)
        if given:
            require(finite("redundancy", values, "B n"))
        return ascending(values)

    def least_redundant(self, ranking: Tensor, keep: int) -> Tensor:
        """The `keep` least redundant tokens (B, keep), ascending."""
        return ranking[:, :keep].sort(dim=1).values

    def survivors(self, ranking: Tensor, m: int) -> Tensor:
        """The m least redundant tokens (B, m), ascending."""
        return self.least_redundant(ranking, m)

    def greedy(
        self,
        m: int,
        *,
        candidates: Tensor | None = None,
        matrix: Tensor | None = None,
        survivors: Tensor | None = None,
    ) -> Choices:
        """m tokens by `greedy_map_features`, with `survivors` as many more as rule "supplement" needs.

        `matrix` holds the cosines, which are overwritten.
        """
        k = m if survivors is None else min(2 * m, self.unit.shape[1])
        return Choices(*greedy_units(self.unit, self.weight, self.diagonal, k, 1e-6, candidates, matrix, survivors))

    def fuse(self, choices: Choices, m: int, survivors: Tensor | None) -> Tensor:
        """The first m choices (B, m), ascending, or, with survivors, m tokens by rule "supplement"."""
        if survivors is None:
            return choices.order[:, :m].sort(dim=1).values
        return combine(choices.order, found_in(survivors, choices.order), m, "supplement")

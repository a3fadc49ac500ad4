"""Script: drop what is redundant, keep what the question asks about."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vlprune.methods.base import Method
from vlprune.selection import (
    Selection,
    fuse,
    graph_keep,
    graph_scores,
    greedy_map_features,
    relevance_scores,
    select_script,
)
from vlprune.selection.dpp import KERNELS
from vlprune.selection.fusion import RULES
from vlprune.selection.graph import GRAPHS

if TYPE_CHECKING:
    from torch import Tensor

    from vlprune.models import TokenView
    from vlprune.query import Query

CHOICES: dict[str, tuple[object, ...]] = {
    "graph": GRAPHS,
    "kernel": KERNELS,
    "fusion": RULES,
    "relevance": ("auto", "llm", "clip"),
    "sign": (None, 1, -1),
}


@dataclass(frozen=True)
class Script(Method):
    """Graph-structured pruning and query-conditioned selection, as in the paper.

    `tau`, `gamma` and `graph` shape the redundancy graph; `kernel` ("s_prime" or "s") the determinantal
    process; `fusion` how the two agree ("supplement", "released", or "filter", which lets `rho` of the tokens
    through the graph first). `relevance` says whose embeddings compare question and tokens: "clip" (needs
    `attach(..., dual_encoder=)`), "llm", or "auto", which is "clip" where there is a dual encoder. `sign`
    overrides the sign of the similarity; by default it is the encoder's own, −1 for CLIP. With a budget per frame
    the graph spans the whole video: a token that repeats another frame is redundant.

    >>> Script(keep=64).fusion
    'supplement'
    >>> Script(fusion="sum")
    Traceback (most recent call last):
    ...
    ValueError: fusion='sum': choose from 'released', 'supplement', 'filter'.
    """

    tau: float = 0.3
    gamma: float = 5.0
    graph: str = "bipartite"
    kernel: str = "s_prime"
    fusion: str = "supplement"
    rho: float = 0.5
    relevance: str = "auto"
    sign: int | None = None

    name: ClassVar[str] = "script"
    needs_query: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, allowed in CHOICES.items():
            value = getattr(self, field)
            if value not in allowed or isinstance(value, bool):
                raise ValueError(f"{field}={value!r}: choose from {', '.join(map(repr, allowed))}.")
        if not -1.0 <= self.tau <= 1.0:
            raise ValueError(f"tau={self.tau}: a cosine, from -1 to 1.")
        if not 0.0 <= self.gamma < float("inf"):
            raise ValueError(f"gamma={self.gamma}: must be finite and not negative.")
        if not 0.0 < self.rho <= 1.0:
            raise ValueError(f"rho={self.rho}: a share of the tokens, in (0, 1].")

    def select(self, view: TokenView, query: Query | None) -> Selection:
        assert query is not None
        relevance = relevance_scores(query.image, query.text, sign=query.sign)
        m = self.count(view.n)
        if view.frames > 1:
            return self._by_frames(view, relevance, m)
        return select_script(
            view.features,
            None,
            m,
            tau=self.tau,
            gamma=self.gamma,
            graph=self.graph,
            kernel=self.kernel,
            fusion=self.fusion,
            rho=self.rho,
            relevance=relevance,
        )

    def _by_frames(self, view: TokenView, relevance: Tensor, m: int) -> Selection:
        """m of each frame: what repeats another frame is redundant too, so the graph spans the video."""
        video = view.features.reshape(-1, view.frames * view.n, view.features.shape[2])
        scores = graph_scores(video, tau=self.tau, gamma=self.gamma, graph=self.graph).view(-1, view.n)
        filtering = self.fusion == "filter"
        survivors = graph_keep(scores, max(m, int(self.rho * view.n + 0.5)) if filtering else m)
        ranks = min(2 * m, view.n) if self.fusion == "supplement" else m
        candidates = survivors if filtering else None
        order = greedy_map_features(view.features, relevance, ranks, kind=self.kernel, candidates=candidates)
        kept = fuse(order, survivors, m, rule=self.fusion)
        return Selection(kept=kept, order=order, redundancy=scores, relevance=relevance)

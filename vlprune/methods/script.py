"""Script: drop what is redundant, keep what the question asks about."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from vlprune.budget import Budget
from vlprune.methods.base import Method
from vlprune.methods.registry import register_method
from vlprune.methods.settings import check_query_settings
from vlprune.selection import graph_scores, greedy_gains, relevance_scores, select_script
from vlprune.selection.checks import check_choice
from vlprune.selection.dpp import KERNELS
from vlprune.selection.fusion import RULES
from vlprune.selection.graph import check_graph
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class Script(Method):
    """Graph-structured pruning and query-conditioned selection.

    `tau`, `gamma` and `graph` shape the redundancy graph; `tau` is a cosine, or "otsu" or "quantile" for each image's
    own threshold. `kernel` ("s_prime" or "s") is the determinantal process; `fusion` how the two agree: "released"
    (what the greedy chooses; the graph has no say), "supplement" (the paper's text), or "filter", which lets `rho`
    of the tokens through the graph first. The default is what answered best (docs/method.md). `relevance` says whose
    embeddings compare question and tokens: "clip" (needs `attach(..., dual_encoder=)`), "llm", or "auto", which is
    "clip" where there is a dual encoder. `sign` overrides the sign of the similarity; by default it is the encoder's
    own, −1 for CLIP. With a budget per frame the graph spans the whole video: a token that repeats another frame is
    redundant. With `Budget(adaptive=..., mean=...)` an image that is soon told keeps fewer tokens than a crowded one;
    of a fixed budget the rest covers the image evenly, once the best token left adds less than the share `fill` of what
    the first one added (0 turns that off; "supplement" does without).

    >>> Script(keep=64).fusion
    'released'
    >>> Script(fusion="sum")
    Traceback (most recent call last):
    ...
    ValueError: fusion='sum': choose from 'released', 'supplement', 'filter'.
    """

    tau: float | str = 0.3
    gamma: float = 5.0
    graph: str = "bipartite"
    kernel: str = "s_prime"
    fusion: str = "released"
    rho: float = 0.5
    fill: float = 0.02
    relevance: str = "auto"
    sign: int | None = None

    name: ClassVar[str] = "script"
    needs_query: ClassVar[bool] = True
    adapts: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"fusion": "supplement"},
        "released": {"fusion": "released", "fill": 0.0},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_graph(self.tau, self.gamma, self.graph)
        check_choice("kernel", self.kernel, KERNELS)
        check_choice("fusion", self.fusion, RULES)
        check_query_settings(self.relevance, self.sign)
        if not 0.0 < self.rho <= 1.0:
            raise ValueError(f"rho={self.rho}: a share of the tokens, in (0, 1].")
        if not 0.0 <= self.fill <= 1.0:
            raise ValueError(f"fill={self.fill}: a share of what the first token adds, from 0 to 1.")
        if self.fusion == "supplement" and Budget.of(self.keep).adaptive is not None:
            raise ValueError("fusion='supplement': it chooses all at once, so an adaptive budget does not go with it.")

    def select(self, view: TokenView, query: Query | None) -> Selection:
        assert query is not None
        budget, m = Budget.of(self.keep), self.count(view.n)
        if view.frames > 1 and self.fusion != "released":
            return self._select_by_frames(view, query, m)
        if budget.adaptive is None:
            return self._select_fixed(view, query, m, self.fill)
        chosen = self._select_fixed(view, query, budget.bounds(view.n)[1], 0.0)
        assert chosen.order is not None
        assert chosen.relevance is not None
        gains = greedy_gains(view.features, chosen.relevance, chosen.order, kind=self.kernel)
        sizes = tuple(budget.needed(image) for image in gains.tolist())
        if self.fill > budget.adaptive:
            chosen = self._select_fixed(view, query, chosen.order.shape[1], self.fill)
        assert chosen.order is not None
        kept = chosen.order[:, : max(sizes, default=0)].clone()
        for row, size in zip(kept, sizes):
            row[:size] = row[:size].sort().values
            row[size:] = row[0]
        return replace(chosen, kept=kept, gains=gains, sizes=sizes)

    def _select_fixed(self, view: TokenView, query: Query, m: int, fill: float) -> Selection:
        """Choose m tokens of each image."""
        own = query.image is view.features  # then relevance is computed with the rest
        return select_script(
            view.features,
            query.text if own else None,
            m,
            tau=self.tau,
            gamma=self.gamma,
            graph=self.graph,
            kernel=self.kernel,
            fusion=self.fusion,
            rho=self.rho,
            fill=fill,
            grid=view.grid,
            sign=query.sign,
            relevance=None if own else relevance_scores(query.image, query.text, sign=query.sign),
        )

    def _select_by_frames(self, view: TokenView, query: Query, m: int) -> Selection:
        """Choose m tokens of each frame; the graph spans the video: what repeats another frame is redundant too."""
        video = view.features.reshape(-1, view.frames * view.n, view.features.shape[2])
        return select_script(
            view.features,
            None,
            m,
            kernel=self.kernel,
            fusion=self.fusion,
            rho=self.rho,
            fill=self.fill,
            grid=view.grid,
            relevance=relevance_scores(query.image, query.text, sign=query.sign),
            redundancy=graph_scores(video, tau=self.tau, gamma=self.gamma, graph=self.graph).view(-1, view.n),
        )

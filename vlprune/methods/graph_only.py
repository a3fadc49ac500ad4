"""Script's graph alone: drop what is redundant, without the question."""

from dataclasses import dataclass
from typing import ClassVar

from vlprune.methods.base import Method
from vlprune.methods.registry import register_method
from vlprune.selection import graph_keep, graph_scores
from vlprune.selection.graph import check_graph
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class GraphOnly(Method):
    """The least redundant tokens by Script's similarity graph.

    `tau`, `gamma` and `graph` are as in `Script`.

    >>> import torch
    >>> from vlprune.types import TokenView
    >>> tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])
    >>> GraphOnly(keep=1).select(TokenView(tokens, (2, 2)), None).kept.tolist()
    [[2]]
    """

    tau: float = 0.3
    gamma: float = 5.0
    graph: str = "bipartite"

    name: ClassVar[str] = "graph_only"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_graph(self.tau, self.gamma, self.graph)

    def select(self, view: TokenView, query: Query | None) -> Selection:
        redundancy = graph_scores(view.features, tau=self.tau, gamma=self.gamma, graph=self.graph)
        return Selection(kept=graph_keep(redundancy, self.count(view.n)), redundancy=redundancy)

"""Script, the paper's method: drop what is redundant, keep what the question asks about."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vlprune.methods.base import QueryMethod
from vlprune.methods.registry import register_method
from vlprune.selection import graph_scores, select_script
from vlprune.selection.checks import check_choice
from vlprune.selection.dispatch import fused_for
from vlprune.selection.dpp import KERNELS
from vlprune.selection.fusion import RULES
from vlprune.selection.graph import check_graph
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class Script(QueryMethod):
    """The paper's method: what a bipartite graph finds redundant goes, what a question-weighted DPP picks stays.

    Yang et al., *Script: Graph-Structured and Query-Conditioned Semantic Token Pruning for Multimodal Large Language
    Models*, TMLR 2025. `tau`, `gamma` and `graph` shape the redundancy graph, `kernel` is the determinantal process:
    "s_prime" (the paper's L̃) or "s" (its L, in which relevance weighs less).

    Three things are open in the text, and are fields here (docs/method.md says why the defaults are what they are):

    - `fusion`, how graph and greedy agree. "supplement" keeps what both keep and tops it up with the tokens that a
      larger k brings: "by iteratively increasing k". "released" tops up from the greedy's own m, so that the graph has
      no say: what the authors' code does. "filter" lets the share `rho` of the tokens through the graph first.
    - `relevance` and `sign`, whose embeddings compare question and tokens, and with which sign.
    - `pooling`, how the question's tokens become one vector.

    With a budget per frame the graph spans the whole video: a token that repeats another frame is redundant.

    >>> Script(keep=64).fusion
    'supplement'
    >>> Script(fusion="sum")
    Traceback (most recent call last):
    ...
    ValueError: fusion='sum': choose from 'released', 'supplement', 'filter'.
    """

    tau: float | str = 0.3
    gamma: float = 5.0
    graph: str = "bipartite"
    kernel: str = "s_prime"
    fusion: str = "supplement"
    rho: float = 0.5

    name: ClassVar[str] = "script"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_graph(self.tau, self.gamma, self.graph)
        if isinstance(self.tau, str) and not self.adapts:
            raise ValueError(f"tau={self.tau!r}: a cosine from -1 to 1; an image's own threshold is for script_plus.")
        check_choice("kernel", self.kernel, KERNELS)
        check_choice("fusion", self.fusion, RULES)
        if not 0.0 < self.rho <= 1.0:
            raise ValueError(f"rho={self.rho}: a share of the tokens, in (0, 1].")

    def select(self, view: TokenView, query: Query | None) -> Selection:
        return self.choose(view, query, self.count(view.n))

    def choose(self, view: TokenView, query: Query | None, m: int) -> Selection:
        """Choose m tokens of each image, or of each frame of a video; on a GPU as one recorded CUDA graph, if small."""
        fast = fused_for(view.features)
        if fast is None or query is None or not self.recordable or view.frames > 1:
            return self.choose_unrecorded(view, query, m)
        image = None if query.image is view.features else query.image
        tensors = {"features": view.features, "image": image, "text": query.text}
        settings = {"method": self, "m": m, "grid": view.grid, "sign": query.sign, "source": query.source}
        return fast.replayed(_recorded, tensors, settings)

    @property
    def recordable(self) -> bool:
        """Whether all is done on the device while tokens are chosen, which is not known of another's subclass."""
        return type(self) is Script and not isinstance(self.tau, str)

    def choose_unrecorded(
        self, view: TokenView, query: Query | None, m: int, *, relevance: Tensor | None = None
    ) -> Selection:
        """`choose` in plain calls; `relevance` (B, n) stands in for the question's."""
        own = relevance is None and query is not None and query.image is view.features  # computed with the rest then
        if relevance is None and not own:
            relevance = self.relevance_scores(view, query)
        return select_script(
            view.features,
            query.text if query is not None and own else None,
            m,
            tau=self.tau,
            gamma=self.gamma,
            graph=self.graph,
            kernel=self.kernel,
            fusion=self.fusion,
            rho=self.rho,
            sign=query.sign if query is not None else 1,
            relevance=relevance,
            redundancy=self._redundancy_in_video(view),
        )

    def _redundancy_in_video(self, view: TokenView) -> Tensor | None:
        """(B, n) by one graph for all frames of a video; None for images, and where the graph has no say."""
        if view.frames == 1 or self.fusion == "released":
            return None
        video = view.features.reshape(-1, view.frames * view.n, view.features.shape[2])
        return graph_scores(video, tau=self.tau, gamma=self.gamma, graph=self.graph).view(-1, view.n)


def _recorded(
    features: Tensor,
    image: Tensor | None,
    text: Tensor,
    method: Script,
    m: int,
    grid: tuple[int, int],
    sign: int,
    source: str,
) -> Selection:
    """`method.choose_unrecorded` as a function of tensors, which can be recorded."""
    query = Query(features if image is None else image, text, sign, source, texts=())
    return method.choose_unrecorded(TokenView(features, grid), query, m)

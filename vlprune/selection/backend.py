"""The steps that Script asks of a backend: plain torch (`torch_backend`) or Triton kernels (`fused.backend`)."""

from typing import Any, NamedTuple, Protocol

from torch import Tensor


class Choices(NamedTuple):
    """The tokens that a greedy chose: `order` (B, k) int64, in order of choice, and what each added, `gains` (B, k).

    The fused kernels also say in `step` (B, n) int32 when each token was chosen, k if never; or, where they chose among
    some tokens only, when each of these, `among` (B, c) int64, was.
    """

    order: Tensor
    gains: Tensor
    step: Tensor | None = None
    among: Tensor | None = None


class Backend(Protocol):
    """The tokens of a batch of images, whose relevance and weights in the kernel have been computed."""

    #: (B, n) float32, as computed from a query; None where relevance was given.
    relevance: Tensor | None

    def __init__(
        self,
        features: Tensor,
        *,
        query: Tensor | None,
        query_mask: Tensor | None,
        sign: int,
        relevance: Tensor | None,
        kernel: str,
    ) -> None: ...

    def redundancy(self, tau: float, gamma: float, graph: str, ranks: int | None) -> tuple[Tensor, Tensor | None]:
        """Redundancy (B, n), and the matrix to give to a greedy of `ranks` steps, if it is worth one.

        The graph and the greedy are then computed from the same cosines. Without `ranks` there is no matrix.
        """
        ...

    def rank(self, redundancy: Tensor, *, given: bool) -> Any:
        """The tokens ranked by redundancy (B, n), in the backend's own form; its values are checked if `given`."""
        ...

    def least_redundant(self, ranking: Any, keep: int) -> Tensor:
        """The first `keep` tokens of a ranking (B, keep), ascending; the ranking cannot be used again."""
        ...

    def greedy(self, k: int, *, candidates: Tensor | None, matrix: Tensor | None) -> Choices:
        """k tokens by `greedy_map_features`; `candidates` are ascending, and `matrix` is what `redundancy` returned."""
        ...

    def fuse(self, choices: Choices, m: int, ranking: Any | None) -> Tensor:
        """The m tokens to keep (B, m), ascending: the first m choices, or, with a ranking, by rule "supplement"."""
        ...

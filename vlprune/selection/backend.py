"""The steps that Script asks of a backend: plain torch (`torch_backend`) or Triton kernels (`fused.backend`)."""

from typing import Any, NamedTuple, Protocol

from torch import Tensor


class Choices(NamedTuple):
    """The tokens that a greedy chose: `order` (B, k) int64, in order of choice, and what each added, `gains` (B, k).

    Where it stopped before k, the order goes on with −1 and the gains with 0. The fused kernels also say in `step`
    (B, n) int32 when each token was chosen, k if never; or, where they chose among some tokens only, when each of
    these, `among` (B, c) int64, was.
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
        """The first `keep` tokens of a ranking (B, keep), ascending."""
        ...

    def survivors(self, ranking: Any, m: int) -> Any:
        """The first m tokens of a ranking, in the backend's own form, for `greedy` and `fuse`."""
        ...

    def greedy(
        self, m: int, *, candidates: Tensor | None = None, matrix: Tensor | None = None, survivors: Any | None = None
    ) -> Choices:
        """m tokens by `greedy_map_features`; `candidates` are ascending, and `matrix` is what `redundancy` returned.

        With the graph's m `survivors` there are min(2m, n) ranks, and an image's greedy stops when rule "supplement"
        has enough: after one more choice for each of its first m that is no survivor.
        """
        ...

    def fuse(self, choices: Choices, m: int, survivors: Any | None) -> Tensor:
        """The m tokens to keep (B, m), ascending: the first m choices, or, with survivors, by rule "supplement"."""
        ...

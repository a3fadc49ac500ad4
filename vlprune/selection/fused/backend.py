"""Script's steps as Triton kernels, and Script as a recorded CUDA graph."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor

from vlprune.types import Selection

from ..backend import Choices
from . import ranks as ranking_kernels
from .cosines import gram, random_sides
from .device_errors import fault_word
from .greedy import greedy
from .replay import replayed
from .token_table import measure, pool

MATRIX_BYTES = 1 << 30
"""Bytes of kernel matrix that are held; above it, its rows are computed from the features when they are needed."""

FEW_CHANNELS = 512
"""Channels up to which products are plain float32 where more tokens are chosen than there are channels.

There ε decides when nothing is left to choose by, and tensor cores, which truncate, add to it. With more channels what
ε leaves is large enough to be chosen by, and on the whole their choices are as near to float64's.
"""


def run(script: Callable[..., Selection], tensors: dict[str, Tensor | None], settings: dict[str, Any]) -> Selection:
    """`script(FusedBackend, **tensors, **settings)`, from a recorded CUDA graph where there is one."""
    features = tensors["features"]
    assert features is not None
    with on_device(features.device):
        return replayed(script, tensors, {"backend_class": FusedBackend, **settings})


class FusedBackend:
    """The token table of a batch of images (`token_table`), and Script's steps on it."""

    def __init__(
        self,
        features: Tensor,
        *,
        query: Tensor | None = None,
        query_mask: Tensor | None = None,
        sign: int = 1,
        relevance: Tensor | None = None,
        kernel: str = "s_prime",
    ) -> None:
        self.word = fault_word(features.device)
        self.features = plain(features)
        pooled = given = None
        if query is not None:
            pooled = pool(plain(query), None if query_mask is None else query_mask.contiguous(), self.word)
        elif relevance is not None:
            given = plain(relevance).to(torch.float32)
        self.table = measure(self.features, self.word, pooled=pooled, sign=sign, given=given, kind=kernel)
        self.relevance = None if query is None else self.table[3]

    def redundancy(
        self, tau: float, gamma: float, graph: str, ranks: int | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Redundancy (B, n), and the kernel (B, n, n) if a greedy of `ranks` steps is better off with it."""
        x = self.features
        _, n, d = x.shape
        shared = ranks is not None and worth_a_matrix(x, n, ranks)
        exact = shared and needs_plain_float32(d, ranks)  # type: ignore[arg-type]
        matrix, parts = gram(x, self.table, weighted=shared, store=shared, graph=graph, tau=tau, exact=exact)
        side = random_sides(n, x.device)[1] if graph == "random" else parts
        split = not shared and graph != "full" and n > 1
        return ranking_kernels.score(parts, side, tau, gamma, graph, split), matrix

    def rank(self, redundancy: Tensor, *, given: bool) -> Tensor:
        """The ranks of the tokens by redundancy, in the form that `ranks.survivors` reads."""
        if given:
            return ranking_kernels.rank(redundancy.detach().to(torch.float32).contiguous(), self.word)
        return ranking_kernels.rank(redundancy)

    def least_redundant(self, ranking: Tensor, keep: int) -> Tensor:
        """The `keep` least redundant tokens (B, keep), ascending."""
        return ranking_kernels.survivors(ranking, keep)

    def survivors(self, ranking: Tensor, m: int) -> Tensor:
        """(B, n) int8, 1 for the m least redundant tokens."""
        return ranking_kernels.marked_survivors(ranking, m)

    def greedy(
        self,
        m: int,
        *,
        candidates: Tensor | None = None,
        matrix: Tensor | None = None,
        survivors: Tensor | None = None,
        eps: float = 1e-6,
    ) -> Choices:
        """m tokens by `greedy_map_features`, with `survivors` as many more as rule "supplement" needs.

        `matrix` is the kernel of all tokens, where `redundancy` made it.
        """
        x, table, among = self.features, self.table, None
        _, n, d = x.shape
        k = m if survivors is None else min(2 * m, n)
        exact = needs_plain_float32(d, k)
        c = 0 if candidates is None else candidates.shape[1]
        if matrix is None and c >= k and worth_a_matrix(x, c, k):  # of the candidates alone
            among, candidates = candidates, None
            matrix, _ = gram(x, table, weighted=True, at=among, store=True, exact=exact)
        elif matrix is None and worth_a_matrix(x, n, k):
            matrix, _ = gram(x, table, weighted=True, store=True, exact=exact)
        order, gains, step = greedy(
            m,
            kernel=matrix,
            features=(x, table) if matrix is None else None,
            eps=eps,
            candidates=candidates,
            survives=survivors,
            at=among,
            exact=exact,
        )
        return Choices(order, gains, step, among)

    def fuse(self, choices: Choices, m: int, survivors: Tensor | None) -> Tensor:
        """The first m choices (B, m), ascending, or, with survivors, by rule "supplement"."""
        assert choices.step is not None
        return ranking_kernels.fuse(choices.step, m, choices.order.shape[1], survivors, choices.among)


def on_device(device: torch.device) -> AbstractContextManager[Any]:
    """Make `device` the current one: Triton launches there, whatever device its tensors are on."""
    if device.type != "cuda" or device.index == torch.cuda.current_device():
        return nullcontext()
    return torch.cuda.device(device)


def plain(x: Tensor) -> Tensor:
    """Contiguous, in a dtype the kernels read; float64 becomes float32 as in the torch functions."""
    x = x.detach()
    return (x if x.dtype in (torch.float32, torch.bfloat16, torch.float16) else x.to(torch.float32)).contiguous()


def needs_plain_float32(d: int, k: int) -> bool:
    """Whether ε decides among k choices by d channels."""
    return d < k and d <= FEW_CHANNELS


def worth_a_matrix(x: Tensor, n: int, k: int) -> bool:
    """Whether to compute the n × n kernel at once: it has to fit, and k rows one by one have to be slower.

    Rows are made sixteen at a time, from n·d values in memory, and about half of them are used. The matrix takes n²·d
    products, for which tensor cores are fast enough from a sixty-fourth of the rows on (float32: a thirty-second).
    """
    return 4 * x.shape[0] * n * n <= MATRIX_BYTES and n <= (64 if x.dtype != torch.float32 else 32) * k

"""The functions of `vlprune.selection` as kernels. Their arguments' shapes have been checked there."""

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from . import ranks
from .backend import FusedBackend, on_device, plain, worth_a_matrix
from .checks import check_candidates, check_kernel
from .cosines import gram
from .device_errors import fault_word
from .greedy import greedy
from .token_table import measure


def _on_its_device(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The function, run on the device of its first argument."""

    @wraps(function)
    def run(x: Tensor, *args: Any, **settings: Any) -> Tensor:
        with on_device(x.device):
            return function(x.detach(), *args, **settings)

    return run


@_on_its_device
def graph_scores(features: Tensor, *, tau: float, gamma: float, graph: str) -> Tensor:
    """Redundancy of each token (B, n)."""
    return FusedBackend(features).redundancy(tau, gamma, graph)[0]


@_on_its_device
def graph_keep(scores: Tensor, keep: int) -> Tensor:
    """The `keep` least redundant tokens (B, keep), ascending."""
    word = fault_word(scores.device)
    return ranks.survivors(ranks.rank(scores.to(torch.float32).contiguous(), word), keep)


@_on_its_device
def relevance_scores(features: Tensor, query: Tensor, *, query_mask: Tensor | None, sign: int) -> Tensor:
    """Relevance of each token to the question (B, n)."""
    relevance = FusedBackend(features, query=query, query_mask=query_mask, sign=sign).relevance
    assert relevance is not None
    return relevance


@_on_its_device
def query_kernel(features: Tensor, relevance: Tensor, *, kind: str) -> Tensor:
    """The kernel of the DPP (B, n, n)."""
    tokens = FusedBackend(features, relevance=relevance, kernel=kind)
    _, n, d = features.shape
    kernel, _ = gram(tokens.features, tokens.table, weighted=True, store=True, exact=d <= n)
    return kernel


@_on_its_device
def greedy_map(kernel: Tensor, k: int, *, eps: float, candidates: Tensor | None) -> Tensor:
    """k tokens (B, k) by the greedy on a kernel (B, n, n), in order of choice."""
    word = fault_word(kernel.device)
    matrix = kernel.to(torch.float32).contiguous()
    check_kernel(matrix, word)
    if candidates is not None:
        candidates = check_candidates(candidates, matrix.shape[1], word)
    return greedy(k, kernel=matrix, eps=eps, candidates=candidates)[0]


@_on_its_device
def greedy_map_features(
    features: Tensor, relevance: Tensor, k: int, *, kind: str, eps: float, candidates: Tensor | None
) -> Tensor:
    """k tokens (B, k) by the greedy on features and relevance, in order of choice."""
    tokens = FusedBackend(features, relevance=relevance, kernel=kind)
    if candidates is not None:
        candidates = check_candidates(candidates, features.shape[1], tokens.word)
    return tokens.greedy(k, candidates=candidates, eps=eps).order


@_on_its_device
def farthest_points(features: Tensor, k: int) -> Tensor:
    """k tokens (B, k), each the one that is farthest from those before it."""
    x = plain(features)
    table = measure(x, fault_word(x.device))
    store = worth_a_matrix(x, x.shape[1], k)
    kernel, parts = gram(x, table, store=store, graph="nearest")
    return greedy(k, kernel=kernel, features=(x, table), nearest=parts[0].amax(0), exact=False)[0]

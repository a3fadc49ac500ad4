"""The public functions, put together from the kernels. The torch functions have checked the arguments' shapes."""

from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from vlprune.types import Selection

from ..grid import even_key
from . import checks as vet
from . import device_errors as report
from . import ranks as rank
from .cosines import gram, sides
from .greedy import greedy
from .replay import replayed
from .token_table import measure, pool

LIMIT = 1 << 29
"""Bytes of kernel matrix that are held; above it, its rows are made from the features when they are needed."""


def _on_its_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """Triton launches on the current device, which need not be the tensor's."""

    @wraps(function)
    def run(x: Tensor, *args: Any, **settings: Any) -> Any:
        x = x.detach()
        if x.device.type != "cuda" or x.device.index == torch.cuda.current_device():
            return function(x, *args, **settings)
        with torch.cuda.device(x.device):
            return function(x, *args, **settings)

    return run


@_on_its_device
def graph_scores(features: Tensor, *, tau: float, gamma: float, graph: str) -> Tensor:
    x, word = _plain(features), report.word(features.device)
    return _redundancy(x, measure(x, word), tau, gamma, graph)


@_on_its_device
def graph_keep(scores: Tensor, keep: int) -> Tensor:
    word = report.word(scores.device)
    return rank.survivors(rank.rank(scores.to(torch.float32).contiguous(), word), keep)


@_on_its_device
def relevance_scores(features: Tensor, query: Tensor, *, query_mask: Tensor | None, sign: int) -> Tensor:
    x, word = _plain(features), report.word(features.device)
    return measure(x, word, pooled=_pooled(query, query_mask, word), sign=sign)[3]


@_on_its_device
def query_kernel(features: Tensor, relevance: Tensor, *, kind: str) -> Tensor:
    x, word = _plain(features), report.word(features.device)
    table = measure(x, word, given=_plain(relevance).to(torch.float32), kind=kind)
    kernel, _ = gram(x, table, weighted=True, store=True, exact=x.shape[2] <= x.shape[1])
    return kernel


@_on_its_device
def greedy_map(kernel: Tensor, k: int, *, eps: float, candidates: Tensor | None) -> Tensor:
    word = report.word(kernel.device)
    matrix = kernel.to(torch.float32).contiguous()
    vet.kernel_values(matrix, word)
    if candidates is not None:
        candidates = vet.indices(candidates, matrix.shape[1], word)
    return greedy(k, kernel=matrix, eps=eps, candidates=candidates)[0]


@_on_its_device
def greedy_map_features(
    features: Tensor,
    relevance: Tensor,
    k: int,
    *,
    kind: str,
    eps: float,
    candidates: Tensor | None,
    fill: float = 0.0,
    grid: tuple[int, int] = (1, 1),
) -> Tensor:
    x, word = _plain(features), report.word(features.device)
    table = measure(x, word, given=_plain(relevance).to(torch.float32), kind=kind)
    if candidates is not None:
        candidates = vet.indices(candidates, x.shape[1], word)
    return _choose(x, table, k, eps, candidates, fill, _rest(x, fill, grid))[0]


@_on_its_device
def farthest_points(features: Tensor, k: int) -> Tensor:
    x, word = _plain(features), report.word(features.device)
    table = measure(x, word)
    store = _worth_a_matrix(x, x.shape[1], k)
    kernel, parts = gram(x, table, store=store, graph="nearest")
    nearest = parts[0].amax(0)
    return greedy(k, kernel=kernel, features=(x, table), nearest=nearest, exact=False)[0]


@_on_its_device
def select_script(
    features: Tensor,
    query: Tensor | None,
    m: int,
    *,
    query_mask: Tensor | None,
    relevance: Tensor | None,
    **settings: Any,
) -> Selection:
    tensors = {"features": features, "query": query, "query_mask": query_mask, "relevance": relevance}
    found = replayed(_select_script, tensors, {"m": m, **settings})
    return found if relevance is None else replace(found, relevance=relevance.detach().to(torch.float32))


def _select_script(
    *,
    features: Tensor,
    query: Tensor | None,
    query_mask: Tensor | None,
    relevance: Tensor | None,
    m: int,
    tau: float,
    gamma: float,
    graph: str,
    kernel: str,
    fusion: str,
    rho: float,
    sign: int,
    fill: float = 0.0,
    grid: tuple[int, int] = (1, 1),
) -> Selection:
    x, word = _plain(features), report.word(features.device)
    n, rest = x.shape[1], _rest(x, fill, grid)
    if relevance is not None:
        table, r = measure(x, word, given=_plain(relevance).to(torch.float32), kind=kernel), None
    elif query is not None:
        table = measure(x, word, pooled=_pooled(query, query_mask, word), sign=sign, kind=kernel)
        r = table[3]
    if fusion == "released":  # the graph has no say
        order, place, at = _choose(x, table, m, 1e-6, None, fill, rest)
        return Selection(kept=rank.fuse(place, m, None, at), order=order, relevance=r)
    if fusion == "filter":
        scores = _redundancy(x, table, tau, gamma, graph)
        candidates = rank.survivors(rank.rank(scores), max(m, int(rho * n + 0.5)))
        order, place, at = _choose(x, table, m, 1e-6, candidates, fill, rest)
        return Selection(kept=rank.fuse(place, m, None, at), order=order, redundancy=scores, relevance=r)
    ranks = min(2 * m, n)
    exact = x.shape[2] <= ranks
    if _worth_a_matrix(x, n, ranks):  # one pass over the cosines serves the graph and the greedy
        matrix, parts = gram(x, table, weighted=True, store=True, graph=graph, tau=tau, exact=exact)
        order, place = greedy(ranks, kernel=matrix, exact=exact)
        scores = _scores(parts, x, tau, gamma, graph, False)
    else:
        order, place = greedy(ranks, features=(x, table), exact=exact)
        scores = _redundancy(x, table, tau, gamma, graph)
    kept = rank.fuse(place, m, rank.rank(scores), None)
    return Selection(kept=kept, order=order, redundancy=scores, relevance=r)


def _plain(x: Tensor) -> Tensor:
    """Contiguous, in a dtype the kernels read; float64 becomes float32 as in the torch functions."""
    x = x.detach()
    return (x if x.dtype in (torch.float32, torch.bfloat16, torch.float16) else x.to(torch.float32)).contiguous()


def _pooled(query: Tensor, mask: Tensor | None, word: Tensor) -> Tensor:
    return pool(_plain(query), None if mask is None else mask.contiguous(), word)


def _worth_a_matrix(x: Tensor, n: int, k: int) -> bool:
    """Whether to make the n × n kernel at once: it has to fit, and k rows one by one have to be slower.

    Rows are made sixteen at a time, from n·d values in memory, and about half of them are used. The matrix takes n²·d
    products, for which tensor cores are fast enough from a sixty-fourth of the rows on (float32: a thirty-second).
    """
    return 4 * x.shape[0] * n * n <= LIMIT and n <= (64 if x.dtype != torch.float32 else 32) * k


def _rest(x: Tensor, fill: float, grid: tuple[int, int]) -> Tensor | None:
    return even_key(*grid, x.device) if fill else None


def _choose(
    x: Tensor,
    table: Tensor,
    k: int,
    eps: float,
    candidates: Tensor | None,
    fill: float,
    rest: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor | None]:
    """The greedy's order and places, and the tokens that the places are of, if not all."""
    exact = x.shape[2] <= k
    more: Any = {"eps": eps, "exact": exact, "fill": fill, "rest": rest}
    if candidates is not None and candidates.shape[1] >= k and _worth_a_matrix(x, candidates.shape[1], k):
        matrix, _ = gram(x, table, weighted=True, at=candidates, store=True, exact=exact)
        return *greedy(k, kernel=matrix, at=candidates, **more), candidates
    if _worth_a_matrix(x, x.shape[1], k):
        matrix, _ = gram(x, table, weighted=True, store=True, exact=exact)
        return *greedy(k, kernel=matrix, candidates=candidates, **more), None
    return *greedy(k, features=(x, table), candidates=candidates, **more), None


def _redundancy(x: Tensor, table: Tensor, tau: float, gamma: float, graph: str) -> Tensor:
    _, parts = gram(x, table, graph=graph, tau=tau)
    return _scores(parts, x, tau, gamma, graph, True)


def _scores(parts: Tensor, x: Tensor, tau: float, gamma: float, graph: str, alone: bool) -> Tensor:
    side = sides(x.shape[1], x.device)[1] if graph == "random" else parts
    return rank.score(parts, side, tau, gamma, graph, alone and graph != "full" and x.shape[1] > 1)

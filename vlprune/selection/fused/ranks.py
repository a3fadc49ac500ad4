"""Redundancy from the graph's sums, its ranks, the tokens the graph keeps, and the tokens Script keeps.

The torch functions sort. Here each token counts those below it, which needs no order: n² comparisons are cheap beside
n² cosines, and every token's count is independent of the others'.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..numerics import TIE
from .cosines import tile
from .device_errors import BAD_SCORES, write_fault
from .launch import blocks, launch, power


@triton.jit
def _score(
    parts, side, scores, n, of_first, of_second, first_others, second_others, planes, tau, gamma,
    SIDED: tl.constexpr, RANDOM: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Redundancy of BLOCK tokens from partial sums over tiles; a token of the first side has `of_first` of them."""
    b = tl.program_id(1)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mine = i < n
    size = tl.num_programs(1).to(tl.int64) * n
    here = b.to(tl.int64) * n + i
    second = tl.zeros([BLOCK], tl.int32)
    if SIDED:
        second = tl.load(side + i, mask=mine, other=0).to(tl.int32) if RANDOM else i & 1
    tiles = tl.where(second > 0, of_second, of_first)
    degree = tl.zeros([BLOCK], tl.float32)
    total = tl.zeros([BLOCK], tl.float32)
    every = tl.zeros([BLOCK], tl.float32)
    for at in range(0, planes):
        on = mine & (at < tiles)
        place = parts + at * size + here
        degree += tl.load(place, mask=on, other=0.0)
        total += tl.load(place + planes * size, mask=on, other=0.0)
        every += tl.load(place + 2 * planes * size, mask=on, other=0.0)
    others = tl.where(second > 0, second_others, first_others).to(tl.float32)
    mean = total / tl.maximum(degree, 1.0)
    dense = degree * tl.exp((gamma * (mean - tau)).to(tl.float64)).to(tl.float32)
    tl.store(scores + here, tl.where(degree > 0, dense, every / others), mask=mine)


@triton.jit
def _rank(scores, rank, word, n, tie, CHECK: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr):
    """How many scores are below each of BLOCK tokens', times 2, plus 1 if it is no tie with the next below."""
    b = tl.program_id(1)
    base = b.to(tl.int64) * n
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(scores + base + i, mask=i < n, other=0.0)
    if CHECK:
        good = tl.abs(value) < float("inf")
        write_fault(word, (i < n) & (good == 0), BAD_SCORES, b, i)
        value = tl.where(good, value, 0.0)
    counts = tl.zeros([BLOCK, CHUNK], tl.int32)
    lower = tl.full([BLOCK, CHUNK], float("-inf"), tl.float32)
    for start in range(0, n, CHUNK):
        j = start + tl.arange(0, CHUNK)
        other = tl.load(scores + base + j, mask=j < n, other=float("inf"))
        if CHECK:
            other = tl.where((tl.abs(other) < float("inf")) | (j >= n), other, 0.0)
        less = other[None, :] < value[:, None]
        counts += less.to(tl.int32)
        lower = tl.maximum(lower, tl.where(less, other[None, :], float("-inf")))
    count, below = tl.sum(counts, 1), tl.max(lower, 1)
    size = tl.maximum(tl.maximum(tl.abs(value), tl.abs(below)), 1.0)
    opens = (count == 0) | (value - below > tie * size)
    tl.store(rank + base + i, count * 2 + opens.to(tl.int32), mask=i < n)


@triton.jit
def _survive(rank, kept, n, m, LISTED: tl.constexpr, BLOCK: tl.constexpr):
    """One image: its m least redundant tokens, as a list (LISTED), or marked by 1 among n numbers, the others by 0.

    Tokens whose scores are a run of ties go by index. Only the run across the border matters: what lies below it
    survives, and of the run itself the lowest indices do.
    """
    b = tl.program_id(1)
    base = b.to(tl.int64) * n
    lower = tl.zeros([BLOCK], tl.int32)
    upper = tl.full([BLOCK], 1, tl.int32) * n
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        r = tl.load(rank + base + i, mask=i < n, other=0)
        opens, r = r & 1, r >> 1
        lower = tl.maximum(lower, tl.where((opens > 0) & (r < m), r, 0))
        upper = tl.minimum(upper, tl.where((opens > 0) & (r >= m), r, n))
    below, above = tl.max(lower, 0), tl.min(upper, 0)
    seen, written = 0, 0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        r = tl.load(rank + base + i, mask=i < n, other=2 * n) >> 1
        tied = ((r >= below) & (r < above)).to(tl.int32)
        on = ((r < below) | ((tied > 0) & (seen + tl.cumsum(tied, 0) <= m - below))).to(tl.int32)
        seen += tl.sum(tied, 0)
        if LISTED:
            tl.store(kept + b.to(tl.int64) * m + written + tl.cumsum(on, 0) - 1, i.to(tl.int64), mask=on > 0)
            written += tl.sum(on, 0)
        else:
            tl.store(kept + base + i, on.to(tl.int8), mask=i < n)


@triton.jit
def _fuse(place, survives, at, kept, n, m, k, GRAPH: tl.constexpr, LIST: tl.constexpr, BLOCK: tl.constexpr):
    """One image: the greedy's first m; or (GRAPH) those of them that survive, and all that it chose after them.

    The greedy stopped as soon as these were m. A token that it did not choose has place k.
    """
    b = tl.program_id(1)
    base = b.to(tl.int64) * n
    done = 0
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        t = tl.load(place + base + i, mask=i < n, other=k)
        on = t < m
        if GRAPH:
            on = (on & (tl.load(survives + base + i, mask=i < n, other=0) > 0)) | ((t >= m) & (t < k))
        on = on.to(tl.int32)
        token = i.to(tl.int64)
        if LIST:
            token = tl.load(at + base + i, mask=i < n, other=0)
        to = done + tl.cumsum(on, 0) - 1
        tl.store(kept + b.to(tl.int64) * m + to, token, mask=(on > 0) & (to < m))
        done += tl.sum(on, 0)
    for start in range(done, m, BLOCK):  # never with finite numbers
        i = start + tl.arange(0, BLOCK)
        tl.store(kept + b.to(tl.int64) * m + i, tl.zeros([BLOCK], tl.int64), mask=i < m)


def score(parts: Tensor, side: Tensor, tau: float, gamma: float, graph: str, split: bool) -> Tensor:
    """Redundancy (B, n) from the partial sums of `gram`; `split` if they are of the graph's two sides alone."""
    _, planes, B, n = parts.shape
    scores = torch.empty(B, n, dtype=torch.float32, device=parts.device)
    sided = graph != "full"
    first, second = (n // 2, n - n // 2) if sided else (n - 1, n - 1)
    edge = tile(B, n - n // 2, parts.device)
    of_first, of_second = (blocks(first, edge), blocks(second, edge)) if split else (planes, planes)
    launch(
        _score,
        (blocks(n, 128), B),
        (parts, side, scores),
        (n, of_first, of_second, max(first, 1), max(second, 1), planes, tau, gamma),
        options={"num_warps": 4},
        SIDED=sided,
        RANDOM=graph == "random",
        BLOCK=128,
    )
    return scores


def rank(scores: Tensor, word: Tensor | None = None) -> Tensor:
    """Ranks (B, n) int32 for `survivors` and `marked_survivors`; `word` if the scores are to be checked."""
    B, n = scores.shape
    ranks = torch.empty(B, n, dtype=torch.int32, device=scores.device)
    tensors = (scores, ranks, scores if word is None else word)
    constants = {"CHECK": word is not None, "BLOCK": 8, "CHUNK": 256}
    launch(_rank, (blocks(n, 8), B), tensors, (n, TIE), options={"num_warps": 4}, **constants)
    return ranks


def survivors(ranks: Tensor, keep: int) -> Tensor:
    """The `keep` least redundant tokens (B, keep) int64, ascending."""
    return _surviving(ranks, torch.empty(len(ranks), keep, dtype=torch.int64, device=ranks.device), keep, listed=True)


def marked_survivors(ranks: Tensor, keep: int) -> Tensor:
    """(B, n) int8, 1 for the `keep` least redundant tokens and 0 for the others."""
    return _surviving(ranks, torch.empty_like(ranks, dtype=torch.int8), keep, listed=False)


def _surviving(ranks: Tensor, kept: Tensor, keep: int, *, listed: bool) -> Tensor:
    B, n = ranks.shape
    constants = {"LISTED": listed, "BLOCK": min(power(n), 4096)}
    launch(_survive, (1, B), (ranks, kept), (n, keep), options={"num_warps": 8}, **constants)
    return kept


def fuse(place: Tensor, m: int, k: int, survives: Tensor | None, at: Tensor | None) -> Tensor:
    """The tokens kept (B, m) int64, ascending: "supplement" with the graph's survivors marked, else the first m.

    `place` (B, n) is when the greedy chose each token, or each of the tokens `at` (B, c); k if it did not. With
    `survives` it has stopped by them.
    """
    B, n = place.shape
    kept = torch.empty(B, m, dtype=torch.int64, device=place.device)
    tensors = (place, place if survives is None else survives, place if at is None else at, kept)
    constants = {"GRAPH": survives is not None, "LIST": at is not None, "BLOCK": min(power(n), 4096)}
    launch(_fuse, (1, B), tensors, (n, m, k), options={"num_warps": 8}, **constants)
    return kept

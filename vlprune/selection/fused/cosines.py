"""All cosines, tile by tile on the tensor cores: summed up for the graph as they come, and stored only if asked to.

A tile is X_a · X_bᵀ of the features as they are, times the inverse lengths. Products of bfloat16 or float16 values are
exact in float32; float32 values are split in three TF32 products. Tensor cores truncate when they accumulate, which
over thousands of channels adds up, so each BK channels start from zero and are added in plain float32.

Truncation makes cosines smaller by about 1e-7, but not the diagonal, which is exact: that adds to the greedy's ε. Where
more tokens are chosen than there are channels, ε decides when nothing is left to choose by, so there products are plain
float32 (`exact`).
"""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..numerics import TIE
from .launch import blocks, is_roomy, launch

NONE, SIDES, FULL, NEAREST = (tl.constexpr(v) for v in range(4))  # what a tile is summed up for
SAFE = tl.constexpr(2.0**40)  # lengths within 1/SAFE and SAFE: products of features neither overflow nor vanish


@triton.jit
def _tokens(at, pos, count, b, offset, step: tl.constexpr, LIST: tl.constexpr, RANDOM: tl.constexpr):
    """The tokens at positions `pos`: listed per image, drawn at random, or every `step`-th from `offset`."""
    pos = tl.minimum(pos, count - 1)
    if LIST:
        return tl.load(at + b.to(tl.int64) * count + pos)
    if RANDOM:
        return tl.load(at + offset + pos)
    return (pos * step + offset).to(tl.int64)


@triton.jit
def _gram(
    x,
    table,
    at,
    side,
    kernel,
    parts,
    threshold,
    one,
    n,
    d,
    rows,
    cols,
    SPLIT: tl.constexpr,
    LIST: tl.constexpr,
    RANDOM: tl.constexpr,
    GRAPH: tl.constexpr,
    STORE: tl.constexpr,
    WEIGHTED: tl.constexpr,
    EXACT: tl.constexpr,
    BM: tl.constexpr,
    BK: tl.constexpr,
    EVEN: tl.constexpr,
    WIDEN: tl.constexpr,
    GROUP: tl.constexpr,
):
    """One BM × BM tile of cosines between `rows` and `cols` tokens; only tiles on or above the diagonal unless SPLIT.

    Programs come in groups of GROUP tile rows, so that those which run together share features in the L2 cache.
    """
    precision: tl.constexpr = "ieee" if EXACT else "tf32x3"
    b = tl.program_id(1)
    down, across = tl.cdiv(rows, BM), tl.cdiv(cols, BM)
    group = tl.program_id(0) // (GROUP * across)
    height = tl.minimum(down - group * GROUP, GROUP)
    within = tl.program_id(0) % (GROUP * across)
    R = group * GROUP + within % height
    C = within // height
    if (SPLIT == 0) & (R > C):
        return
    pa = R * BM + tl.arange(0, BM)
    pc = C * BM + tl.arange(0, BM)
    if SPLIT:
        ta = _tokens(at, pa, rows, b, 0, 2, LIST, RANDOM)
        tc = _tokens(at, pc, cols, b, rows if RANDOM else 1, 2, LIST, RANDOM)
    else:
        ta = _tokens(at, pa, rows, b, 0, 1, LIST, False)
        tc = _tokens(at, pc, cols, b, 0, 1, LIST, False)
    base = b.to(tl.int64) * n
    size = tl.num_programs(1).to(tl.int64) * n
    inv_a, inv_c = tl.load(table + base + ta), tl.load(table + base + tc)
    xa = x + (base + ta)[:, None] * d
    xc = x + (base + tc)[:, None] * d
    big = tl.maximum(tl.max(inv_a, 0), tl.max(inv_c, 0))
    small = tl.minimum(tl.min(tl.where(inv_a > 0, inv_a, 1.0), 0), tl.min(tl.where(inv_c > 0, inv_c, 1.0), 0))
    cos = tl.zeros([BM, BM], tl.float32)
    if (big > SAFE) | (small < 1.0 / SAFE):  # scale first, as the reference does
        for start in range(0, d, BK):
            k = start + tl.arange(0, BK)
            a = tl.load(xa + k[None, :], mask=(k < d)[None, :], other=0.0).to(tl.float32) * inv_a[:, None]
            c = tl.load(xc + k[None, :], mask=(k < d)[None, :], other=0.0).to(tl.float32) * inv_c[:, None]
            cos += tl.dot(a, tl.trans(c), input_precision=precision) * one
    else:
        for start in range(0, d, BK):
            k = start + tl.arange(0, BK)
            if EVEN:
                a, c = tl.load(xa + k[None, :]), tl.load(xc + k[None, :])
            else:
                a = tl.load(xa + k[None, :], mask=(k < d)[None, :], other=0.0)
                c = tl.load(xc + k[None, :], mask=(k < d)[None, :], other=0.0)
            if WIDEN:
                a, c = a.to(tl.float32), c.to(tl.float32)
            # `one` is 1: a plain sum would be folded into the tensor cores' truncating accumulator
            cos += tl.dot(a, tl.trans(c), input_precision=precision) * one
        cos *= inv_a[:, None] * inv_c[None, :]
    cos = tl.where(tl.abs(cos) <= 2.0, cos, 0.0)  # NaN too
    if GRAPH != NONE:
        meet = (pa < rows)[:, None] & (pc < cols)[None, :]
        if GRAPH == SIDES and not SPLIT:
            if RANDOM:
                meet = meet & (tl.load(side + ta)[:, None] != tl.load(side + tc)[None, :])
            else:
                meet = meet & ((ta & 1)[:, None] != (tc & 1)[None, :])
        if GRAPH != SIDES:
            meet = meet & (ta[:, None] != tc[None, :])
        plane = tl.maximum(down, across) * size
        left = parts + C * size + base + ta
        right = parts + R * size + base + tc
        if GRAPH == NEAREST:
            cosine = tl.where(meet, cos, -2.0)
            tl.store(left, tl.max(cosine, 1), mask=pa < rows)
            if R != C:
                tl.store(right, tl.max(cosine, 0), mask=pc < cols)
        else:
            cosine = tl.where(meet, cos, 0.0)
            edge = (meet & (cos >= threshold)).to(tl.float32)
            tl.store(left, tl.sum(edge, 1), mask=pa < rows)
            tl.store(left + plane, tl.sum(edge * cosine, 1), mask=pa < rows)
            tl.store(left + 2 * plane, tl.sum(cosine, 1), mask=pa < rows)
            if SPLIT or R != C:
                tl.store(right, tl.sum(edge, 0), mask=pc < cols)
                tl.store(right + plane, tl.sum(edge * cosine, 0), mask=pc < cols)
                tl.store(right + 2 * plane, tl.sum(cosine, 0), mask=pc < cols)
    if STORE:
        if WEIGHTED:
            wa, wc = tl.load(table + size + base + ta), tl.load(table + size + base + tc)
            cos *= wa[:, None] * wc[None, :]
            own = tl.load(table + 2 * size + base + ta)
            cos = tl.where(ta[:, None] == tc[None, :], own[:, None], cos)
        corner = kernel + b.to(tl.int64) * rows * rows
        # what is above the diagonal is stored twice: products of split values are not symmetric to the last bit
        upper = (pc < rows)[None, :] & (pa[:, None] <= pc[None, :])
        tl.store(corner + pa.to(tl.int64)[:, None] * rows + pc[None, :], cos, mask=upper)
        turned = corner + pc.to(tl.int64)[:, None] * rows + pa[None, :]
        tl.store(turned, tl.trans(cos), mask=(pc < rows)[:, None] & (pa[None, :] <= pc[:, None]))


def gram(
    x: Tensor,
    table: Tensor,
    *,
    at: Tensor | None = None,
    store: bool = False,
    weighted: bool = False,
    graph: str | None = None,
    tau: float = 0.0,
    exact: bool = False,
) -> tuple[Any, Any]:
    """The kernel of tokens `at` (B, c) or of all (B, n, n), if `store`, and partial sums (·, tiles, B, n) for `graph`.

    `graph` is one of `vlprune.selection.graph.GRAPHS`, or "nearest" for the largest cosine to another token. The kernel
    is `weighted`, or holds plain cosines. What was not asked for is None.
    """
    B, n, d = x.shape
    count = n if at is None else at.shape[1]
    split = not store and graph in ("bipartite", "random") and n > 1
    rows, cols = (n - n // 2, n // 2) if split else (count, count)
    bm, bk = tile(B, rows, x.device), (16 if exact else 32 if x.dtype == torch.float32 else 64)
    down, across = blocks(rows, bm), blocks(cols, bm)
    kernel = torch.empty(B, rows, rows, dtype=torch.float32, device=x.device) if store else None
    sums = 1 if graph == "nearest" else 3
    parts = torch.empty(sums, max(down, across), B, n, dtype=torch.float32, device=x.device) if graph else None
    where, side = random_sides(n, x.device) if graph == "random" else (at, table)
    launch(
        _gram,
        (down * across, B),
        (
            x,
            table,
            table if where is None else where,
            side,
            table if kernel is None else kernel,
            table if parts is None else parts,
        ),
        (tau - TIE, 1.0, n, d, rows, cols),
        options={"num_warps": 8 if bm == 128 else 4, "num_stages": 3 if bm == 128 else 4},
        SPLIT=split,
        LIST=at is not None,
        RANDOM=graph == "random",
        GRAPH={None: 0, "full": 2, "nearest": 3}.get(graph, 1),
        STORE=store,
        WEIGHTED=weighted,
        EXACT=exact,
        BM=bm,
        BK=bk,
        EVEN=d % bk == 0,
        WIDEN=exact or x.device.type == "cpu",  # Triton's interpreter does not multiply bfloat16
        GROUP=8,
    )
    return kernel, parts


def tile(B: int, rows: int, device: torch.device) -> int:
    """The side of a tile: small while large ones would not fill the device, or do not fit its shared memory."""
    return 128 if B * blocks(rows, 128) ** 2 >= 256 and is_roomy(device) else 64


def random_sides(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """The random graph's tokens, one half then the other (n,) int64, and which half each token is in (n,) int8."""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing() and (n, device) not in _drawn:
        raise RuntimeError(f"graph='random' with n={n} must be called once before it is captured in a CUDA graph.")
    _drawn.add((n, device))
    return _random_sides(n, device)


_drawn: set[tuple[int, torch.device]] = set()


@cache  # recorded graphs read them
def _random_sides(n: int, device: torch.device) -> tuple[Tensor, Tensor]:
    at = torch.randperm(n, generator=torch.Generator().manual_seed(0), device="cpu")
    side = torch.zeros(n, dtype=torch.int8)
    side[at[n - n // 2 :]] = 1
    return at.to(device), side.to(device)

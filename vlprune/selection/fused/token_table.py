"""The table of each token's own numbers, (4, B, n) float32, from one pass over the features.

The planes are 1/length (0 for a zero vector), its weight in the kernel, the kernel's diagonal, and relevance.

Sums along channels are float64 of float32 products, in the order of operations of the torch functions: relevance then
comes out the same to the last bit or nearly so, and min-max scaling has no noise to stretch.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..numerics import TIE
from .device_errors import BAD_FEATURES, BAD_QUERY, BAD_RELEVANCE, EMPTY_MASK, write_fault
from .launch import blocks, launch, power

TINY = tl.constexpr(torch.finfo(torch.float32).tiny)


@triton.jit
def _pool(query, mask, pooled, word, length, d, MASKED: tl.constexpr, BL: tl.constexpr, BD: tl.constexpr):
    """The mean of the query's tokens that count, for BD channels of one image."""
    b = tl.program_id(1)
    at = tl.program_id(0) * BD + tl.arange(0, BD)
    total = tl.zeros([BD], tl.float64)
    count = 0
    for start in range(0, length, BL):
        row = start + tl.arange(0, BL)
        on = row < length
        if MASKED:
            on = on & (tl.load(mask + b * length + row, mask=on, other=0) != 0)
        count += tl.sum(on.to(tl.int32), 0)
        where = (b.to(tl.int64) * length + row[:, None]) * d + at[None, :]
        q = tl.load(query + where, mask=on[:, None] & (at < d)[None, :], other=0.0)
        total += tl.sum(q.to(tl.float64), 0)
    mean = total / tl.maximum(count, 1)
    good = tl.abs(mean) < float("inf")
    tl.store(pooled + b * d + at, tl.where(good, mean, 0.0).to(tl.float32), mask=at < d)
    write_fault(word, (at < d) & (good == 0), BAD_QUERY, b, at)
    write_fault(word, (at < d) & (tl.zeros_like(at) + count == 0), EMPTY_MASK, b, at)


@triton.jit
def _measure(
    x,
    pooled,
    given,
    raw,
    table,
    word,
    n,
    d,
    sign,
    QUERY: tl.constexpr,
    GIVEN: tl.constexpr,
    ROOT: tl.constexpr,
    R: tl.constexpr,
    BD: tl.constexpr,
):
    """For R tokens: 1/length, and the cosine to the query or the weight and diagonal of a given relevance."""
    b = tl.program_id(1)
    i = tl.program_id(0) * R + tl.arange(0, R)
    mine = i < n
    here = b.to(tl.int64) * n + i
    rows = x + here[:, None] * d
    square = tl.zeros([R], tl.float64)
    query_square = tl.zeros([BD], tl.float64)
    for start in range(0, d, BD):
        c = start + tl.arange(0, BD)
        v = tl.load(rows + c[None, :], mask=mine[:, None] & (c < d)[None, :], other=0.0).to(tl.float64)
        square += tl.sum(v * v, 1)
        if QUERY:
            q = tl.load(pooled + b * d + c, mask=c < d, other=0.0).to(tl.float64)
            query_square += q * q
    length = tl.sqrt(square)
    good = length < float("inf")
    divisor = tl.maximum(length, TINY).to(tl.float32)
    write_fault(word, mine & (good == 0), BAD_FEATURES, b, i)
    inverse = tl.where(good & (length > 0), tl.div_rn(tl.zeros_like(divisor) + 1.0, divisor), 0.0)
    tl.store(table + here, inverse, mask=mine)
    if QUERY:
        query_divisor = tl.maximum(tl.sqrt(tl.sum(query_square, 0)), TINY).to(tl.float32)
        dot = tl.zeros([R], tl.float64)
        for start in range(0, d, BD):
            c = start + tl.arange(0, BD)
            v = tl.load(rows + c[None, :], mask=mine[:, None] & (c < d)[None, :], other=0.0).to(tl.float32)
            q = tl.load(pooled + b * d + c, mask=c < d, other=0.0)
            product = tl.div_rn(v, divisor[:, None]) * tl.div_rn(q, query_divisor)[None, :]
            dot += tl.sum(product.to(tl.float64), 1)
        tl.store(raw + here, tl.where(good, dot * sign, 0.0), mask=mine)
    if GIVEN:
        r = tl.load(given + here, mask=mine, other=0.0)
        fine = (r >= 0) & (r < float("inf"))
        write_fault(word, mine & (fine == 0), BAD_RELEVANCE, b, i)
        size = tl.num_programs(1).to(tl.int64) * n
        _weigh(table + size + here, size, tl.where(fine, r, 0.0), inverse, mine, ROOT)


@triton.jit
def _weigh(weight, size, r, inverse, mine, ROOT: tl.constexpr):
    """Store the weight that relevance gives a token, and, a plane on, its diagonal entry."""
    tl.store(weight, tl.sqrt_rn(r) if ROOT else r, mask=mine)
    tl.store(weight + size, tl.where(inverse > 0, r if ROOT else r * r, 0.0), mask=mine)


@triton.jit
def _scale(raw, table, n, tie, ROOT: tl.constexpr, BLOCK: tl.constexpr):
    """Min-max scaling of one image's raw relevance, and the weights that follow from it."""
    b = tl.program_id(1)
    base = b.to(tl.int64) * n
    size = tl.num_programs(1).to(tl.int64) * n
    low = tl.full([BLOCK], float("inf"), tl.float64)
    high = tl.full([BLOCK], float("-inf"), tl.float64)
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        low = tl.minimum(low, tl.load(raw + base + i, mask=i < n, other=float("inf")))
        high = tl.maximum(high, tl.load(raw + base + i, mask=i < n, other=float("-inf")))
    bottom = tl.min(low, 0)
    span = tl.max(high, 0) - bottom
    for start in range(0, n, BLOCK):
        i = start + tl.arange(0, BLOCK)
        value = tl.load(raw + base + i, mask=i < n, other=0.0)
        r = tl.where(span > tie, (value - bottom) / tl.maximum(span, tie), 1.0).to(tl.float32)
        inverse = tl.load(table + base + i, mask=i < n, other=0.0)
        tl.store(table + 3 * size + base + i, r, mask=i < n)
        _weigh(table + size + base + i, size, r, inverse, i < n, ROOT)


def pool(query: Tensor, mask: Tensor | None, word: Tensor) -> Tensor:
    """The mean query embedding (B, d) float32."""
    B, length, d = query.shape
    pooled = torch.empty(B, d, dtype=torch.float32, device=query.device)
    marks = query if mask is None else mask.view(torch.int8)
    grid = (blocks(d, 128), B)
    constants = {"MASKED": mask is not None, "BL": 16, "BD": 128}
    launch(_pool, grid, (query, marks, pooled, word), (length, d), options={"num_warps": 4}, **constants)
    return pooled


def measure(
    x: Tensor,
    word: Tensor,
    *,
    pooled: Tensor | None = None,
    sign: int = 1,
    given: Tensor | None = None,
    kind: str = "s_prime",
) -> Tensor:
    """The table (4, B, n). Without a query or a given relevance only its first plane means anything.

    The plane of relevance is filled from the query alone: a given relevance is with the caller already.
    """
    B, n, d = x.shape
    table = torch.empty(4, B, n, dtype=torch.float32, device=x.device)
    raw = table if pooled is None else torch.empty(B, n, dtype=torch.float64, device=x.device)
    rows = 4 if B * n > 2048 else 1
    launch(
        _measure,
        (blocks(n, rows), B),
        (x, table if pooled is None else pooled, table if given is None else given, raw, table, word),
        (n, d, float(sign)),
        options={"num_warps": 4},
        QUERY=pooled is not None,
        GIVEN=given is not None,
        ROOT=kind == "s",
        R=rows,
        BD=min(power(d), 1024 if rows == 4 else 4096),
    )
    if pooled is not None:
        block = min(power(n), 4096)
        launch(_scale, (1, B), (raw, table), (n, TIE), options={"num_warps": 4}, ROOT=kind == "s", BLOCK=block)
    return table

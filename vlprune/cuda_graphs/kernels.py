"""Triton kernels of `fused_attention`, `fused_norm_mlp`, `fused_encoder` and `fused_patches`."""

# mypy: disallow-untyped-defs=False

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rotate(x, y, cos, sin):
    """Rotate vectors given by their halves x and y: in float32, rounded once."""
    a, b, c, s = x.to(tl.float32), y.to(tl.float32), cos.to(tl.float32), sin.to(tl.float32)
    return (a * c - b * s).to(x.dtype), (b * c + a * s).to(x.dtype)


@triton.jit
def _attention_kernel(
    PRODUCT, COS, SIN, KEYS, VALUES, OUT, n, width, turn, slots, scale,
    HEADS: tl.constexpr, FEW: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """One block of queries of one head. A block of keys is rotated by each that looks at it, and stored by one."""
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # those with most to do begin
    head, batch = tl.program_id(1), tl.program_id(2)
    kind = head // (HEADS // FEW)
    half: tl.constexpr = D // 2
    near, wide = tl.arange(0, half)[None], tl.arange(0, D)[None]
    base = PRODUCT + batch.to(tl.int64) * n * width
    cache = (batch.to(tl.int64) * FEW + kind) * slots * D
    rows = block * ROWS + tl.arange(0, ROWS)[:, None]
    real = rows < n
    query = base + rows * width + head * D + near
    turned = batch * turn + rows * D + near
    c, s = tl.load(COS + turned, real, 0.0), tl.load(SIN + turned, real, 0.0)
    q1, q2 = _rotate(tl.load(query, real, 0.0), tl.load(query + half, real, 0.0), c, s)
    top = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, D), tl.float32)
    for start in range(0, tl.minimum((block + 1) * ROWS, n), COLUMNS):
        columns = start + tl.arange(0, COLUMNS)[:, None]
        there = columns < n
        at = base + columns * width + (HEADS + kind) * D
        angle = batch * turn + columns * D + near
        cos, sin = tl.load(COS + angle, there, 0.0), tl.load(SIN + angle, there, 0.0)
        k1, k2 = _rotate(tl.load(at + near, there, 0.0), tl.load(at + half + near, there, 0.0), cos, sin)
        value = tl.load(at + FEW * D + wide, there, 0.0)
        stores = (start >= block * ROWS) & (head % (HEADS // FEW) == 0)
        mine = columns < tl.where(stores, n, 0)  # Triton 3.9's interpreter takes no mask that is partly one number
        tl.store(KEYS + cache + columns * D + near, k1, mine)
        tl.store(KEYS + cache + columns * D + half + near, k2, mine)
        tl.store(VALUES + cache + columns * D + wide, value, mine)
        scores = tl.dot(q2, tl.trans(k2), tl.dot(q1, tl.trans(k1)))
        seen = tl.trans(columns) <= rows
        scores = tl.where(seen, scores * scale, -float("inf"))
        best = tl.maximum(top, tl.max(scores, 1))
        weights = tl.exp2(scores - best[:, None])
        shrink = tl.exp2(top - best)
        total = total * shrink + tl.sum(weights, 1)
        out = tl.dot(weights.to(value.dtype), value, out * shrink[:, None])
        top = best
    out = out / total[:, None]
    tl.store(OUT + (batch.to(tl.int64) * n + rows) * (HEADS * D) + head * D + wide, out.to(OUT.dtype.element_ty), real)


def launch_attention(qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """`vlprune.cuda_graphs.fused_attention.fused_attention` on a GPU."""
    qkv, cos, sin = qkv.contiguous(), cos.contiguous(), sin.contiguous()
    (batch, n, width), (_, key_heads, slots, d) = qkv.shape, keys.shape
    heads = width // d - 2 * key_heads
    out = qkv.new_empty(batch, n, heads * d)
    rows, warps = (64, 4) if n <= 256 else (128, 8)
    grid = (triton.cdiv(n, rows), heads, batch)
    turn = n * d if len(cos) > 1 else 0
    _attention_kernel[grid](
        qkv, cos, sin, keys, values, out, n, width, turn, slots, scale * 1.4426950408889634,
        HEADS=heads, FEW=key_heads, D=d, ROWS=rows, COLUMNS=64, num_warps=warps, num_stages=2,
    )  # fmt: skip
    return out


@triton.jit
def _rms_norm_kernel(X, WEIGHT, OUT, d, eps, BLOCK: tl.constexpr):
    """RMS norm of one row."""
    row = tl.program_id(0).to(tl.int64) * d
    at = tl.arange(0, BLOCK)
    there = at < d
    x = tl.load(X + row + at, there, 0.0).to(tl.float32)
    weight = tl.load(WEIGHT + at, there, 0.0)
    x *= tl.rsqrt(tl.sum(x * x, 0) / d + eps)
    x = x.to(OUT.dtype.element_ty).to(tl.float32) * weight.to(tl.float32)
    tl.store(OUT + row + at, x.to(OUT.dtype.element_ty), there)


def launch_rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """`vlprune.cuda_graphs.fused_norm_mlp.rms_norm` on a GPU."""
    x = x.contiguous()
    d = x.shape[-1]
    out = torch.empty_like(x)
    block = triton.next_power_of_2(d)
    _rms_norm_kernel[(x.numel() // d,)](x, weight, out, d, eps, BLOCK=block, num_warps=4 if block <= 2048 else 8)
    return out


@triton.jit
def _gated_silu_kernel(PRODUCT, OUT, width, BLOCK: tl.constexpr):
    """silu(gate) * up of a stretch of one row."""
    row, at = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    there = at < width
    gate = tl.load(PRODUCT + 2 * row * width + at, there, 0.0).to(tl.float32)
    up = tl.load(PRODUCT + (2 * row + 1) * width + at, there, 0.0).to(tl.float32)
    gate = (gate / (1.0 + tl.exp(-gate))).to(OUT.dtype.element_ty).to(tl.float32)
    tl.store(OUT + row * width + at, (gate * up).to(OUT.dtype.element_ty), there)


def launch_gated_silu(gate_up: Tensor) -> Tensor:
    """`vlprune.cuda_graphs.fused_norm_mlp.gated_silu` on a GPU."""
    gate_up = gate_up.contiguous()
    width = gate_up.shape[-1] // 2
    out = gate_up.new_empty(*gate_up.shape[:-1], width)
    _gated_silu_kernel[(out.numel() // width, triton.cdiv(width, 2048))](gate_up, out, width, BLOCK=2048, num_warps=4)
    return out


@triton.jit
def _layer_norm_kernel(X, Y, WEIGHT, BIAS, MORE, TOTAL, OUT, d, eps, ADD: tl.constexpr, BLOCK: tl.constexpr):
    """Layer norm of one row of X; with ADD of X + Y, and X + Y + MORE beside it."""
    row = tl.program_id(0).to(tl.int64) * d
    at = tl.arange(0, BLOCK)
    there = at < d
    kind = OUT.dtype.element_ty
    x = tl.load(X + row + at, there, 0.0).to(tl.float32)
    if ADD:
        x = (x + tl.load(Y + row + at, there, 0.0).to(tl.float32)).to(kind).to(tl.float32)
        tl.store(TOTAL + row + at, (x + tl.load(MORE + at, there, 0.0).to(tl.float32)).to(kind), there)
    away = tl.where(there, x - tl.sum(x, 0) / d, 0.0)
    out = away * tl.rsqrt(tl.sum(away * away, 0) / d + eps)
    weight, bias = tl.load(WEIGHT + at, there, 0.0).to(tl.float32), tl.load(BIAS + at, there, 0.0).to(tl.float32)
    tl.store(OUT + row + at, (out * weight + bias).to(kind), there)


def launch_add_layer_norm(
    x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, eps: float, more: Tensor | None
) -> tuple[Tensor, Tensor]:
    """`vlprune.cuda_graphs.fused_encoder.add_layer_norm` on a GPU."""
    x, d = x.contiguous(), x.shape[-1]
    out, block = torch.empty_like(x), triton.next_power_of_2(d)
    total = x if y is None else torch.empty_like(x)
    _layer_norm_kernel[(x.numel() // d,)](
        x, x if y is None else y.contiguous(), weight, bias, weight if more is None else more, total, out, d, eps,
        ADD=y is not None, BLOCK=block, num_warps=4 if block <= 2048 else 8,
    )  # fmt: skip
    return total, out


@triton.jit
def _rotate_kernel(PRODUCT, COS, SIN, width, pairs, D: tl.constexpr, BLOCK: tl.constexpr):
    """Rotate the queries and keys of one row, half of whose numbers `pairs` counts."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    there = at < pairs
    half: tl.constexpr = D // 2
    near = at % half
    first = PRODUCT + row * width + at // half * D + near
    angle = row * D + near
    x, y = tl.load(first, there, 0.0).to(tl.float32), tl.load(first + half, there, 0.0).to(tl.float32)
    c1, s1 = tl.load(COS + angle, there, 0.0).to(tl.float32), tl.load(SIN + angle, there, 0.0).to(tl.float32)
    c2, s2 = tl.load(COS + angle + half, there, 0.0), tl.load(SIN + angle + half, there, 0.0)
    kind = PRODUCT.dtype.element_ty
    tl.store(first, (x * c1 - y * s1).to(kind), there)
    tl.store(first + half, (y * c2.to(tl.float32) + x * s2.to(tl.float32)).to(kind), there)


def launch_rotate(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`vlprune.cuda_graphs.fused_patches.rotate_queries_and_keys` on a GPU."""
    qkv, cos, sin = qkv.contiguous(), cos.contiguous(), sin.contiguous()
    (n, width), pairs = qkv.shape, qkv.shape[1] // 3
    block = triton.next_power_of_2(pairs)
    _rotate_kernel[(n,)](qkv, cos, sin, width, pairs, D=cos.shape[1], BLOCK=block, num_warps=4)
    return qkv

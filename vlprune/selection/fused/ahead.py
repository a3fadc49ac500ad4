"""The tokens that are likely to be chosen next, and their rows of what is left of the kernel.

Rows are made by tensor cores, from u as pairs of float16 numbers, which take as much memory as float32 and need not be
taken apart before each product.
"""

import triton
import triton.language as tl

from .words import in_order, largest, pack, unpack


@triton.jit
def _border(scores, rest, few: tl.constexpr):
    """A border, as `in_order`, above `rest`, that `few` scores reach or not many less."""
    keys = in_order(scores)
    low, high = in_order(rest) + 1, tl.max(keys, 0) + 1
    many = tl.sum((keys >= low).to(tl.int32), 0) > few
    if many == 0:
        high = low
    middle = (low >> 1) + (high >> 1) + (low & high & 1)
    while (middle > low) & many:
        count = tl.sum((keys >= middle).to(tl.int32), 0)
        if count > few:
            low = middle
        else:
            high = middle
            many = count < few // 2
        middle = (low >> 1) + (high >> 1) + (low & high & 1)
    return high


@triton.jit
def look_ahead(scores, tokens, rest, j, own, list_at, Q: tl.constexpr):
    """Token j and up to Q − 1 of the best others, then −1; their values; and the largest value of all that is left.

    `scores` are values of `tokens`, and `rest` is the largest of those that are not among them.
    """
    place = tl.arange(0, Q)
    border = _border(tl.where(tokens == j, float("-inf"), scores), rest, Q - 1)
    among = (in_order(scores) >= border) & (scores > float("-inf")) & (tokens != j)
    at = tl.cumsum(among.to(tl.int32), 0)
    tl.store(list_at + at, pack(scores, tokens), mask=among)
    tl.store(list_at, pack(own, j))
    tl.debug_barrier()
    found = tl.load(list_at + place)
    here = place <= tl.sum(among.to(tl.int32), 0)
    ahead = tl.where(here, (found & 0x7FFFFFFF).to(tl.int32), -1)
    ahead_v2 = tl.where(here, unpack(found), float("-inf"))
    outside = tl.maximum(rest, largest(tl.where(among | (tokens == j), float("-inf"), scores)))
    return ahead, ahead_v2, outside


@triton.jit
def halves(value):
    """A number of about 1 at most as the sum of one float16 and 1/2048 of another, which keeps 22 bits."""
    value = tl.minimum(tl.maximum(value, -60000.0), 60000.0)  # only a matrix that is no kernel has larger ones
    high = value.to(tl.float16)
    return high, ((value - high.to(tl.float32)) * 2048.0).to(tl.float16)


@triton.jit
def _product(a, a_rest, b, b_rest):
    """a · bᵀ of numbers in halves, from zero."""
    small = tl.dot(a, tl.trans(b_rest), tl.dot(a_rest, tl.trans(b)))
    return tl.dot(a, tl.trans(b)) + small * (1.0 / 2048.0)


@triton.jit
def rows(
    kernel, x, table, u, base, size, ahead, i, mine, t, n, d, depth, half, scale, one,
    DISTANCE: tl.constexpr, ROWS: tl.constexpr, EXACT: tl.constexpr, BLOCK: tl.constexpr, Q: tl.constexpr,
    CHUNK: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """What is left of the kernel after t steps, at rows `ahead` and this program's tokens i, and among `ahead`.

    EXACT: steps are subtracted one by one in float32, as `_greedy` goes on to do, so that a row is the same to the last
    bit whenever it is made. Else by tensor cores. Those truncate as they accumulate, so every product starts from zero
    and is added in plain float32; `one` is 1 and keeps the compiler from folding the sum back in.
    """
    precision: tl.constexpr = "ieee" if EXACT else "tf32x3"
    a = tl.minimum(tl.maximum(ahead, 0), n - 1)
    here = tl.where(mine, i, 0)
    if ROWS:
        inv_a, inv_i = tl.load(table + base + a), tl.load(table + base + here)
        cos = tl.zeros([BLOCK, Q], tl.float32)
        among = tl.zeros([Q, Q], tl.float32)
        for first in range(0, d, CHANNELS):
            c = first + tl.arange(0, CHANNELS)
            on = (c < d)[None, :]
            xi = tl.load(x + (base + here)[:, None] * d + c[None, :], mask=mine[:, None] & on, other=0.0).to(tl.float32)
            xa = tl.load(x + (base + a)[:, None] * d + c[None, :], mask=on, other=0.0).to(tl.float32) * inv_a[:, None]
            cos += tl.dot(xi * inv_i[:, None], tl.trans(xa), input_precision=precision) * one
            among += tl.dot(xa, tl.trans(xa), input_precision=precision) * one
        left = tl.trans(tl.where(tl.abs(cos) <= 2.0, cos, 0.0))  # NaN too
        among = tl.where(tl.abs(among) <= 2.0, among, 0.0)
        if not DISTANCE:
            wa, wi = tl.load(table + size + base + a), tl.load(table + size + base + here)
            left *= wa[:, None] * wi[None, :]
            among *= wa[:, None] * wa[None, :]
    else:
        left = tl.load(kernel + (base + a)[:, None] * n + here[None, :])
        left = tl.where(tl.abs(left) < float("inf"), left, 0.0)
        among = tl.load(kernel + (base + a)[:, None] * n + a[None, :])
        among = tl.where(tl.abs(among) < float("inf"), among, 0.0)
    if not DISTANCE:
        step = tl.arange(0, CHUNK)[None, :]
        of_a, of_i = u + (base + a)[:, None] * depth + step, u + (base + here)[:, None] * depth + step
        if EXACT:
            for first in range(0, t, CHUNK):
                ua = tl.load(of_a + first, mask=first + step < t, other=0.0)  # others may have gone on to step t
                ui = tl.load(of_i + first)  # its own are 0 from t on; a mask would make four loads of one
                left = tl.dot(-ua, tl.trans(ui), left, input_precision="ieee")
                among = tl.dot(-ua, tl.trans(ua), among, input_precision="ieee")
        else:
            gone, gone_among = tl.zeros([BLOCK, Q], tl.float32), tl.zeros([Q, Q], tl.float32)
            whole = t // CHUNK * CHUNK
            for first in range(0, whole, CHUNK):
                ua, ua_rest = tl.load(of_a + first), tl.load(of_a + half + first)
                gone += _product(tl.load(of_i + first), tl.load(of_i + half + first), ua, ua_rest) * one
                gone_among += _product(ua, ua_rest, ua, ua_rest) * one
            if whole < t:
                on = whole + step < t  # others may have gone on to step t; its own are 0 from t on
                ua, ua_rest = (
                    tl.load(of_a + whole, mask=on, other=0.0),
                    tl.load(of_a + half + whole, mask=on, other=0.0),
                )
                gone += _product(tl.load(of_i + whole), tl.load(of_i + half + whole), ua, ua_rest) * one
                gone_among += _product(ua, ua_rest, ua, ua_rest) * one
            left -= tl.trans(gone) * scale
            among -= gone_among * scale
    return left, among

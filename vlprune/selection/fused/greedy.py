"""The greedy as one launch: all steps of all images, whether by determinant (Script) or by distance (DivPrune).

An image's tokens are shared out to P programs, each of which keeps the state of its own in registers. In each step every
program publishes its best token in two words, reads all words, and so knows the choice; there is no other barrier. The
launch is cooperative and has at most one program a multiprocessor: either all of them run at once or the launch fails, so
that none waits for one that cannot start.

A step by itself reads all of u, to which it adds one column, and a row of the kernel. So rows are made ahead: when a token is
chosen whose row is not there, the rows of the Q tokens that look best are made in one pass over u (and over the features, if
there is no kernel matrix), and brought up to date as others are chosen. Most choices then find their row in registers.

Words, and the v² that others may read, lie in two alternating buffers. A program writes a buffer again only after all have
published the step in between, that is, after all have read it. Publishing releases and reading acquires, at GPU scope.
"""

from functools import lru_cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..numerics import TIE
from .launch import blocks, launch, power


@triton.jit
def _pack(value, low):
    return (value.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low.to(tl.int64)


@triton.jit
def _unpack(words):
    return (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def _publish(slot, top, lane, value, tag, P: tl.constexpr):
    """Tell the others this program's largest value, and the lane it would choose with its value.

    All that the program wrote before is visible to whoever reads the words.
    """
    tag = tag & 0xFFFF
    tl.debug_barrier()
    tl.atomic_xchg(slot, _pack(top, lane * 65536 + tag), sem="relaxed", scope="gpu")
    tl.atomic_xchg(slot + P, _pack(value, tag), sem="release", scope="gpu")


@triton.jit
def _acquire(slots):
    return tl.inline_asm_elementwise(
        "ld.acquire.gpu.global.b64 $0, [$1];", "=l,l", [slots.to(tl.int64)], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def _collect(slots, tag, P: tl.constexpr, LANES: tl.constexpr):
    """All programs' words once they are of this step. LANES is no less than the threads, so that no lane is read twice."""
    at = slots + tl.minimum(tl.arange(0, LANES), P - 1)
    tag = tag & 0xFFFF
    tops, values = _acquire(at), _acquire(at + P)
    while tl.min((((tops & 0xFFFF) == tag) & ((values & 0xFFFF) == tag)).to(tl.int32), 0) == 0:
        tops, values = _acquire(at), _acquire(at + P)
    tl.debug_barrier()
    return tops, values


@triton.jit
def _lower(key_a, value_a, key_b, value_b):
    first = key_a <= key_b
    return tl.where(first, key_a, key_b), tl.where(first, value_a, value_b)


@triton.jit
def _first(value, least, key):
    """The lowest key whose value is at least `least`, and that value."""
    return tl.reduce((tl.where(value >= least, key, 0x3FFFFFFF), value), 0, _lower)


@triton.jit
def _start(kernel, table, base, size, i, mine, n, ROWS: tl.constexpr, DISTANCE: tl.constexpr):
    """What a token i begins with: the kernel's diagonal, or the distance of its nearest neighbour."""
    if DISTANCE:
        value = 1.0 - tl.load(table + base + i, mask=mine, other=0.0)
    elif ROWS:
        value = tl.load(table + 2 * size + base + i, mask=mine, other=0.0)
    else:
        value = tl.load(kernel + (base + i) * n + i, mask=mine, other=0.0)
    return tl.where(tl.abs(value) < float("inf"), value, 0.0)


@triton.jit
def _likely(scores, tokens, j, Q: tl.constexpr):
    """Token j and those of the Q − 1 best scores, −1 where there are not so many."""
    slot = tl.arange(0, Q)
    ahead = tl.where(slot == 0, j, -1)
    scores = tl.where(tokens == j, float("-inf"), scores)
    best = tl.max(scores, 0)
    q = 1
    while (q < Q) & (best > float("-inf")):
        token, _ = _first(scores, best, tokens)
        ahead = tl.where(slot == q, token, ahead)
        scores = tl.where(tokens == token, float("-inf"), scores)
        best = tl.max(scores, 0)
        q += 1
    return ahead


@triton.jit
def _rows(
    kernel, x, table, u, base, size, ahead, i, mine, t, n, d, one,
    DISTANCE: tl.constexpr, ROWS: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr, Q: tl.constexpr,
    CHUNK: tl.constexpr, CHANNELS: tl.constexpr,
):  # fmt: skip
    """What is left of the kernel after t steps, at rows `ahead` and this program's tokens i, and among `ahead`.

    Tensor cores truncate as they accumulate, so every product starts from zero and is added in plain float32; `one` is 1
    and keeps the compiler from folding the sum back in.
    """
    a = tl.maximum(ahead, 0)
    here = tl.where(mine, i, 0)
    if ROWS:
        inv_a, inv_i = tl.load(table + base + a), tl.load(table + base + here)
        left = tl.zeros([BLOCK, Q], tl.float32)
        among = tl.zeros([Q, Q], tl.float32)
        for first in range(0, d, CHANNELS):
            c = first + tl.arange(0, CHANNELS)
            on = (c < d)[None, :]
            xi = tl.load(x + (base + here)[:, None] * d + c[None, :], mask=mine[:, None] & on, other=0.0).to(tl.float32)
            xa = tl.load(x + (base + a)[:, None] * d + c[None, :], mask=on, other=0.0).to(tl.float32) * inv_a[:, None]
            left += tl.dot(xi * inv_i[:, None], tl.trans(xa), input_precision="tf32x3") * one
            among += tl.dot(xa, tl.trans(xa), input_precision="tf32x3") * one
        left = tl.where(tl.abs(left) <= 2.0, left, 0.0)  # NaN too
        among = tl.where(tl.abs(among) <= 2.0, among, 0.0)
        if not DISTANCE:
            wa, wi = tl.load(table + size + base + a), tl.load(table + size + base + here)
            left *= wi[:, None] * wa[None, :]
            among *= wa[:, None] * wa[None, :]
    else:
        left = tl.load(kernel + (base + a)[None, :] * n + here[:, None])
        left = tl.where(tl.abs(left) < float("inf"), left, 0.0)
        among = tl.load(kernel + (base + a)[None, :] * n + a[:, None])
        among = tl.where(tl.abs(among) < float("inf"), among, 0.0)
    if not DISTANCE:
        for first in range(0, t, CHUNK):
            s = first + tl.arange(0, CHUNK)
            on = (s < t)[None, :]
            ua = tl.load(u + (base + a)[:, None] * DEPTH + s[None, :], mask=on, other=0.0)
            ui = tl.load(u + (base + here)[:, None] * DEPTH + s[None, :], mask=mine[:, None] & on, other=0.0)
            left -= tl.dot(ui, tl.trans(ua), input_precision="tf32x3") * one
            among -= tl.dot(ua, tl.trans(ua), input_precision="tf32x3") * one
    return left, among


@triton.jit
def _delay(t, p):
    """Some programs wait up to 8 µs in some steps, in no pattern, to bring races out."""
    tl.inline_asm_elementwise(
        "{ .reg .u32 n; and.b32 n, $1, 8191; nanosleep.u32 n; mov.u32 $0, n; }",
        "=r,r",
        [(t * 40503 + p * 60493) * ((t * 7 + p * 13) % 5 == 0).to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def _greedy(
    kernel,
    x,
    table,
    nearest,
    inside,
    at,
    u,
    slots,
    order,
    place,
    n,
    d,
    k,
    c,
    share,
    eps,
    tolerance,
    one,
    DISTANCE: tl.constexpr,
    ROWS: tl.constexpr,
    POOL: tl.constexpr,
    LIST: tl.constexpr,
    DEPTH: tl.constexpr,
    P: tl.constexpr,
    LANES: tl.constexpr,
    BLOCK: tl.constexpr,
    Q: tl.constexpr,
    CHUNK: tl.constexpr,
    CHANNELS: tl.constexpr,
    JITTER: tl.constexpr,
):
    """k choices of one image, by program p of P."""
    p, b = tl.program_id(0), tl.program_id(1)
    images = tl.num_programs(1)
    base, size = b.to(tl.int64) * n, images.to(tl.int64) * n
    lane = tl.arange(0, BLOCK)
    i = p * share + lane
    mine = (lane < share) & (i < n)
    first_values = nearest if DISTANCE else table
    start = _start(kernel, first_values, base, size, i, mine, n, ROWS, DISTANCE)
    start = tl.where(mine, start, float("-inf"))
    v2 = start
    pool = mine
    if POOL:
        pool = mine & (tl.load(inside + base + i, mask=mine, other=0) != 0)
    chosen_at = tl.zeros([BLOCK], tl.int32) + k
    ahead = tl.full([Q], -1, tl.int32)
    left = tl.zeros([BLOCK, Q], tl.float32)
    among = tl.zeros([Q, Q], tl.float32)
    shown = (slots + 8 * images * P).to(tl.pointer_type(tl.float32), bitcast=True)
    scale = 0.0
    tie = 0.0
    if DISTANCE:
        tie += tolerance
    for t in range(k):
        fresh = (t == 0) | (t == c)  # v² only falls, so the first of a phase is the largest
        value = v2
        if POOL:
            value = tl.where(pool | (t >= c), v2, float("-inf"))
        best = tl.max(value, 0)
        if P > 1:
            seen = shown + ((t % 2) * size + base)
            tl.store(seen + i, v2, mask=mine)
            slot = slots + ((t % 2) * images + b) * 2 * P
            if JITTER:
                _delay(t, p)
            named, reached = _first(value, best - tie, lane)
            _publish(slot + p, best, named, reached, t + 1, P)
            tops, values = _collect(slot, t + 1, P, LANES)
            best = tl.max(_unpack(tops), 0)
        spent = t < 0
        if not DISTANCE:
            if fresh:
                scale = tl.maximum(scale, best)
                tie = tolerance * scale
            spent = best <= (tolerance + 8 * eps) * scale
            if spent:  # go on by the diagonal
                value = tl.where(value == float("-inf"), value, start)
                best = tl.max(value, 0)
                if P > 1:
                    slot = slots + ((2 + t % 2) * images + b) * 2 * P
                    named, reached = _first(value, best - tie, lane)
                    _publish(slot + p, best, named, reached, t + 1, P)
                    tops, values = _collect(slot, t + 1, P, LANES)
                    best = tl.max(_unpack(tops), 0)
        if P > 1:
            program = tl.minimum(tl.arange(0, LANES), P - 1)
            named_lane = ((tops >> 16) & 0xFFFF).to(tl.int32)
            scores, tokens = _unpack(tops), program * share + named_lane
            key, _ = _first(scores, best - tie, program * 65536 + named_lane)
            own = tl.max(tl.where(program == key // 65536, _unpack(values), float("-inf")), 0)
            j = (key // 65536) * share + key % 65536
            if fresh | (own < best - tie):  # what that program named is a tie for it, but not for all
                other = (key // 65536) * share + lane
                theirs = tl.load(seen + other, mask=(lane < share) & (other < n), other=float("-inf"))
                if POOL:
                    listed = tl.load(inside + base + other, mask=(lane < share) & (other < n), other=0) != 0
                    theirs = tl.where(listed | (t >= c), theirs, float("-inf"))
                if spent:
                    real = theirs > float("-inf")
                    begun = _start(kernel, first_values, base, size, other, real, n, ROWS, DISTANCE)
                    theirs = tl.where(real, begun, theirs)
                lowest, own = _first(theirs, best - tie, lane)
                j = (key // 65536) * share + lowest
        else:
            scores, tokens = value, lane
            j, own = _first(value, best - tie, lane)
        j = tl.minimum(j, n - 1)  # it always is, unless numbers are not finite
        if p == 0:
            token = j.to(tl.int64)
            if LIST:
                token = tl.load(at + base + j)
            tl.store(order + b.to(tl.int64) * k + t, token)
        chosen_at = tl.where(i == j, t, chosen_at)
        if t + 1 < k:
            e = tl.zeros([BLOCK], tl.float32)
            if not spent:  # a spent token adds no direction; dividing by its v² would only magnify noise
                if tl.max((ahead == j).to(tl.int32), 0) == 0:
                    ahead = _likely(scores, tokens, j, Q)
                    left, among = _rows(
                        kernel, x, table, u, base, size, ahead, i, mine, t, n, d, one,
                        DISTANCE, ROWS, DEPTH, BLOCK, Q, CHUNK, CHANNELS,
                    )  # fmt: skip
                row = tl.sum(tl.where((ahead == j)[None, :], left, 0.0), 1)
                if DISTANCE:
                    v2 = tl.where((t == 0) | (1.0 - row < v2), 1.0 - row, v2)
                else:
                    root = tl.sqrt_rn(own + eps * scale)
                    e = row / root
                    of_ahead = tl.sum(tl.where((ahead == j)[:, None], among, 0.0), 0) / root
                    left -= e[:, None] * of_ahead[None, :]
                    among -= of_ahead[:, None] * of_ahead[None, :]
                    v2 -= e * e
            if not DISTANCE:
                tl.store(u + (base + i) * DEPTH + t, e, mask=mine)
            v2 = tl.where(mine & (chosen_at == k), v2, float("-inf"))
            tl.debug_barrier()
    tl.store(place + base + i, chosen_at, mask=mine)


def greedy(
    k: int,
    *,
    kernel: Tensor | None = None,
    features: tuple[Tensor, Tensor] | None = None,
    nearest: Tensor | None = None,
    eps: float = 1e-6,
    candidates: Tensor | None = None,
    at: Tensor | None = None,
    share: int | None = None,
    jitter: bool = False,
    tune: Any = None,
) -> tuple[Tensor, Tensor]:
    """k choices (B, k) int64 and, per token, when it was chosen, k if never (B, n) int32.

    From a kernel (B, n, n), or from features and their table. With `nearest`, each token's largest cosine to another (B, n),
    the choice is by distance, and kernel holds cosines. `candidates` (B, c) come first; `at` (B, n) are the tokens' names.
    `share` sets how many tokens a program takes and `jitter` delays programs at random, both for tests.
    """
    tune = tune or {}
    source = kernel if kernel is not None else features[0]  # type: ignore[index]
    x, table = features if features is not None else (source, source)
    B, n = source.shape[:2]
    images, share = shares(B, n, source.device) if share is None else (B, share)
    P, size = blocks(n, share), max(16, power(share))
    depth = blocks(k, 32) * 32
    device = source.device
    order = torch.empty(B, k, dtype=torch.int64, device=device)
    place = torch.empty(B, n, dtype=torch.int32, device=device)
    u = torch.empty(images, n, depth, dtype=torch.float32, device=device) if nearest is None else order
    inside = place
    if candidates is not None:
        inside = torch.zeros(B, n, dtype=torch.int8, device=device).scatter_(1, candidates, 1)
    warps = tune.get("warps", 1 if size <= 32 else 8)
    options = {"num_warps": warps, "launch_cooperative_grid": P > 1}
    for start in range(0, B, images):
        count = min(images, B - start)

        def cut(t: Tensor, dim: int = 0, start: int = start, count: int = count) -> Tensor:
            return t if count == B else t.narrow(dim, start, count).contiguous()

        # eight words a program, then two buffers of v²
        slots = torch.zeros(8 * count * P + count * n, dtype=torch.int64, device=device) if P > 1 else order
        launch(
            _greedy,
            (P, count),
            (
                cut(source),
                cut(x),
                cut(table, 0 if features is None else 1),
                cut(source if nearest is None else nearest),
                cut(inside),
                place if at is None else cut(at),
                u,
                slots,
                cut(order),
                cut(place),
            ),
            (n, x.shape[2], k, 0 if candidates is None else candidates.shape[1], share, eps, TIE, 1.0),
            options=options,
            DISTANCE=nearest is not None,
            ROWS=kernel is None,
            POOL=candidates is not None,
            LIST=at is not None,
            DEPTH=depth,
            P=P,
            LANES=max(power(P), 32 * warps),
            BLOCK=size,
            Q=16,
            CHUNK=tune.get("chunk", max(16, min(64, 8192 // size))),
            CHANNELS=max(16, min(64, 8192 // size)),
            JITTER=jitter,
        )
    return order, place


def shares(B: int, n: int, device: torch.device) -> tuple[int, int]:
    """Images a launch, and tokens a program.

    Never more programs than multiprocessors; at least 32 tokens a program, and at most 4,096, so that its state stays in
    registers.
    """
    if device.type != "cuda":
        return B, n
    resident = _multiprocessors(device)
    images = min(B, max(1, resident // blocks(n, 4096)))
    return images, max(32, blocks(n, resident // images))


@lru_cache(maxsize=None)
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count

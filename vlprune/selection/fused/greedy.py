"""The greedy as one launch: all steps of all images, whether by determinant (Script) or by distance (DivPrune).

An image's tokens are shared out to P programs, each of which keeps the state of its own in registers. In each step
every program publishes its best token in two words, reads all words, and so knows the choice. The launch is cooperative
and has at most one program a multiprocessor: either all of them run at once or the launch fails, so that none waits for
one that cannot start.

A step by itself reads all of u, to which it adds one column, and a row of the kernel. So rows are made ahead: when a
token is chosen whose row is not there, the rows of the tokens that look best are made in one pass over u (and over the
features, if there is no kernel matrix), and brought up to date as others are chosen. Most choices then find their row
in registers. Before programs read each other's u there is a barrier, which releases and acquires at GPU scope.

Nor does every step need words. Values only fall. So if the best of the tokens ahead, whose values every program knows,
is above all that any other token had when words were last exchanged, it is the choice, and no program has to ask.

How many choices fusion by rule "supplement" needs is known after m: as many more as the graph does not keep of these.
Every program knows every choice, so that all of an image count alike, and stop at the same one.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..numerics import TIE
from .launch import blocks, launch, power
from .words import barrier, choice, delay, exchange, first_reaching, largest, unpack

ROWS_AHEAD = 16  #: what a tensor core takes


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
    place = tl.arange(0, Q)
    ahead = tl.where(place == 0, j, -1)
    for q in range(1, Q):
        scores = tl.where(tokens == j, float("-inf"), scores)
        best = largest(scores)
        j = tl.min(tl.where(scores == best, tokens, 0x3FFFFFFF), 0)
        ahead = tl.where(place == q, tl.where(best > float("-inf"), j, -1), ahead)
    return ahead


@triton.jit
def _values_of(ahead, tokens, values):
    """The values of the tokens ahead, −inf for one that is not among the tokens."""
    of_token = tl.where(tokens[None, :] == ahead[:, None], values[None, :], float("-inf"))
    return tl.max(of_token, 1)


@triton.jit
def _outside(scores, others, tokens, ahead):
    """The largest value of a token that is not ahead: a program's best, or its next (`others`) if that is."""
    is_ahead = tl.max((tokens[None, :] == ahead[:, None]).to(tl.int32), 0)
    return largest(tl.where(is_ahead > 0, others, scores))


@triton.jit
def _rows(
    kernel, x, table, u, base, size, ahead, i, mine, t, n, d, depth, one, DISTANCE: tl.constexpr, ROWS: tl.constexpr,
    EXACT: tl.constexpr, BLOCK: tl.constexpr, Q: tl.constexpr, CHUNK: tl.constexpr, CHANNELS: tl.constexpr,
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
        gone = tl.zeros([BLOCK, Q], tl.float32)
        step = tl.arange(0, CHUNK)[None, :]
        of_a, of_i = u + (base + a)[:, None] * depth + step, u + (base + here)[:, None] * depth + step
        for first in range(0, t, CHUNK):
            ua = tl.load(of_a + first, mask=first + step < t, other=0.0)  # others may have gone on to step t
            ui = tl.load(of_i + first)  # its own are 0 from t on; a mask would make four loads of one
            if EXACT:
                left = tl.dot(-ua, tl.trans(ui), left, input_precision="ieee")
                among = tl.dot(-ua, tl.trans(ua), among, input_precision="ieee")
            else:
                gone += tl.dot(ui, tl.trans(ua), input_precision="tf32x3") * one
                among -= tl.dot(ua, tl.trans(ua), input_precision="tf32x3") * one
        if not EXACT:
            left -= tl.trans(gone)
    return left, among


@triton.jit(do_not_specialize=["n", "k", "m", "c", "share", "P"])  # or there would be more to compile
def _greedy(
    kernel, x, table, nearest, inside, survives, at, u, slots, order, gains, place,
    n, d, k, m, c, share, P, depth, eps, tolerance, one,
    DISTANCE: tl.constexpr, ROWS: tl.constexpr, POOL: tl.constexpr, STOP: tl.constexpr, LIST: tl.constexpr,
    SHARED: tl.constexpr, EXACT: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr, Q: tl.constexpr,
    CHUNK: tl.constexpr, CHANNELS: tl.constexpr, JITTER: tl.constexpr,
):  # fmt: skip
    """k choices of one image, by program p of P; with STOP m, and one more for each of these that does not survive."""
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
    ahead_v2 = tl.full([Q], float("-inf"), tl.float32)
    left = tl.zeros([Q, BLOCK], tl.float32)
    among = tl.zeros([Q, Q], tl.float32)
    outside = float("inf")  # no token that is not ahead has more
    exchanges = 0
    scale = 0.0
    tie = 0.0
    if DISTANCE:
        tie += tolerance
    if STOP:  # what the loop does not come to stays so
        if p == 0:
            for later in range(0, k, BLOCK):
                rank = later + lane
                tl.store(order + b.to(tl.int64) * k + rank, tl.full([BLOCK], -1, tl.int64), mask=rank < k)
                tl.store(gains + b.to(tl.int64) * k + rank, tl.zeros([BLOCK], tl.float32), mask=rank < k)
        tl.debug_barrier()  # what the loop stores may be stored by other threads
    both = 0  # of the choices so far, those that survive
    ranks = k  # how many choices there are to be, which with STOP is known after m
    t = 0
    while t < ranks:
        fresh = (t == 0) | (t == c)  # v² only falls, so the first of a phase is the largest
        spent = t < 0
        best = largest(ahead_v2)
        sure = (best - tie > outside) & (fresh == 0)
        if not DISTANCE:
            sure = sure & (best > (tolerance + 8 * eps) * scale)
        if sure:
            j = tl.min(tl.where(ahead_v2 >= best - tie, ahead, 0x3FFFFFFF), 0)
            own = largest(tl.where(ahead == j, ahead_v2, float("-inf")))
        else:
            value = v2
            if POOL:
                value = tl.where(pool | (t >= c), v2, float("-inf"))
            best = largest(value)
            step = slots + ((exchanges % 2) * images + b) * 10 * P  # three exchanges of three words, and a barrier
            exchanges += 1
            if SHARED:
                if JITTER:
                    delay(t, p)
                named, reached = first_reaching(value, best - tie, lane, value)
                tops, values, others = exchange(step, p, value, best, named, reached, exchanges, P, LANES)
                best = largest(unpack(tops))
            if not DISTANCE:
                if fresh:
                    scale = tl.maximum(scale, best)
                    tie = tolerance * scale
                spent = best <= (tolerance + 8 * eps) * scale
                if spent:  # go on by the diagonal
                    value = tl.where(value == float("-inf"), value, start)
                    best = largest(value)
                    if SHARED:
                        named, reached = first_reaching(value, best - tie, lane, value)
                        tops, values, others = exchange(
                            step + 3 * P, p, value, best, named, reached, exchanges, P, LANES
                        )
                        best = largest(unpack(tops))
            if SHARED:
                j, own, scores, tokens = choice(tops, values, best - tie, share, P, LANES)
                if fresh | (own < best - tie):  # what that program named is a tie for it, but not for all
                    again, reaching = first_reaching(value, best - tie, lane, value)
                    if again < share:  # else it names its best as before
                        named, reached = again, reaching
                    tops, values, others = exchange(
                        step + 6 * P, p, value, largest(value), named, reached, exchanges, P, LANES
                    )
                    j, own, scores, tokens = choice(tops, values, best - tie, share, P, LANES)
                names_v2, next_v2 = unpack(values), unpack(others)
            else:
                scores, tokens = value, lane
                names_v2, next_v2 = value, tl.full([BLOCK], float("-inf"), tl.float32)
                j, own = first_reaching(value, best - tie, lane, value)
            j = tl.minimum(j, n - 1)  # it always is, unless numbers are not finite
            if (t + 1 < ranks) & (spent == 0):
                if tl.max((ahead == j).to(tl.int32), 0) == 0:
                    ahead = _likely(scores, tokens, j, Q)
                    ahead_v2 = _values_of(ahead, tokens, names_v2)
                    if SHARED:
                        if JITTER:
                            delay(t + 1, p)
                        barrier(step + 9 * P, p, exchanges, P, LANES)
                    else:
                        tl.debug_barrier()  # u has been written by other threads
                    left, among = _rows(
                        kernel, x, table, u, base, size, ahead, i, mine, t, n, d, depth, one,
                        DISTANCE, ROWS, EXACT, BLOCK, Q, CHUNK, CHANNELS,
                    )  # fmt: skip
                outside = _outside(scores, next_v2, tokens, ahead)
        if STOP:
            also = tl.load(survives + base + j).to(tl.int32)  # added below, by when it has come
        if p == 0:
            token = j.to(tl.int64)
            if LIST:
                token = tl.load(at + base + j)
            tl.store(order + b.to(tl.int64) * k + t, token)
            tl.store(gains + b.to(tl.int64) * k + t, tl.where(spent, 0.0, own))
        chosen_at = tl.where(i == j, t, chosen_at)
        if t + 1 < ranks:
            free = v2 > float("-inf")  # of its own tokens, those not chosen before
            e = tl.zeros([BLOCK], tl.float32)
            if not spent:  # a spent token adds no direction; dividing by its v² would only magnify noise
                its_row = (ahead == j)[:, None]
                row = tl.sum(tl.where(its_row, left, 0.0), 0)
                of_ahead = tl.sum(tl.where(its_row, among, 0.0), 0)
                if DISTANCE:
                    v2 = tl.where((t == 0) | (1.0 - row < v2), 1.0 - row, v2)
                    ahead_v2 = tl.where((t == 0) | (1.0 - of_ahead < ahead_v2), 1.0 - of_ahead, ahead_v2)
                    outside = tl.where(t == 0, float("inf"), outside)  # what it began with was no distance to a choice
                else:
                    root = tl.sqrt_rn(own + eps * scale)
                    e = row / root
                    of_ahead = of_ahead / root
                    left -= of_ahead[:, None] * e[None, :]
                    among -= of_ahead[:, None] * of_ahead[None, :]
                    v2 -= e * e
                    ahead_v2 -= of_ahead * of_ahead
            if not DISTANCE:
                tl.store(u + (base + i) * depth + t, e, mask=mine)
            v2 = tl.where(free & (i != j), v2, float("-inf"))
            ahead_v2 = tl.where((ahead == j) | (ahead < 0), float("-inf"), ahead_v2)
        if STOP:
            both += also
            if t + 1 == m:
                ranks = tl.minimum(2 * m - both, k)
        t += 1
    tl.store(place + base + i, chosen_at, mask=mine)


def greedy(
    m: int,
    *,
    kernel: Tensor | None = None,
    features: tuple[Tensor, Tensor] | None = None,
    nearest: Tensor | None = None,
    eps: float = 1e-6,
    candidates: Tensor | None = None,
    survives: Tensor | None = None,
    at: Tensor | None = None,
    exact: bool = True,
    share: int | None = None,
    jitter: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """m choices (B, k) int64, the v² of each, 0 once it is spent (B, k), and when each token was chosen (B, n) int32.

    A token that was not has k there. k is m. But with `survives` (B, n) int8, which is 1 for m tokens of an image and
    else 0, k is min(2m, n): an image has as many more choices as do not survive of its first m, then −1, of v² 0.

    From a kernel (B, n, n), or from features and their table. With `nearest`, each token's largest cosine to another
    (B, n), the choice is by distance, and kernel holds cosines. `candidates` (B, c) come first; `at` (B, n) are the
    tokens' names. Unless `exact`, tensor cores are used, which truncate. `share` sets how many tokens a program takes
    and `jitter` delays programs at random, for tests.
    """
    source = kernel if kernel is not None else features[0]  # type: ignore[index]
    x, table = features if features is not None else (source, source)
    B, n = source.shape[:2]
    k = m if survives is None else min(2 * m, n)
    images, share = shares(B, n, source.device) if share is None else (B, share)
    P, size = blocks(n, share), max(16, power(share))
    depth = blocks(k, 64) * 64
    device = source.device
    order = torch.empty(B, k, dtype=torch.int64, device=device)
    gains = torch.empty(B, k, dtype=torch.float32, device=device)
    place = torch.empty(B, n, dtype=torch.int32, device=device)
    u = torch.zeros(images, n, depth, dtype=torch.float32, device=device) if nearest is None else order
    inside = place
    if candidates is not None:
        inside = torch.zeros(B, n, dtype=torch.int8, device=device).scatter_(1, candidates, 1)
    # one warp needs no barrier of its own, but takes long to read the words of many programs
    warps = 1 if size <= 32 and P <= 64 else 4 if size <= 128 else 8
    stages = 3 if size <= 256 else 2 if size <= 512 else 1  # shared memory is 99 KiB on some
    options = {"num_warps": warps, "num_stages": stages, "launch_cooperative_grid": P > 1}
    for start in range(0, B, images):
        count = min(images, B - start)

        def cut(t: Tensor, dim: int = 0, start: int = start, count: int = count) -> Tensor:
            return t if count == B else t.narrow(dim, start, count).contiguous()

        if start and nearest is None:
            u.zero_()
        slots = torch.zeros(20 * count * P, dtype=torch.int64, device=device) if P > 1 else order
        launch(
            _greedy,
            (P, count),
            (
                cut(source),
                cut(x),
                cut(table, 0 if features is None else 1),
                cut(source if nearest is None else nearest),
                cut(inside),
                cut(place if survives is None else survives),
                place if at is None else cut(at),
                u,
                slots,
                cut(order),
                cut(gains),
                cut(place),
            ),
            (n, x.shape[2], k, m, 0 if candidates is None else candidates.shape[1], share, P, depth, eps, TIE, 1.0),
            options=options,
            DISTANCE=nearest is not None,
            ROWS=kernel is None,
            POOL=candidates is not None,
            STOP=survives is not None,
            LIST=at is not None,
            SHARED=P > 1,
            EXACT=exact,
            LANES=max(power(P), 32 * warps),
            BLOCK=size,
            Q=ROWS_AHEAD,
            CHUNK=32 if 1 < warps < 8 and not exact else 16,
            CHANNELS=max(16, min(64, 8192 // size)),
            JITTER=jitter,
        )
    return order, gains, place


def shares(B: int, n: int, device: torch.device) -> tuple[int, int]:
    """Images a launch, and tokens a program.

    Never more programs than multiprocessors, and for few tokens not so many that exchanging words takes longer than it
    saves; at most 1,024 tokens a program, so that its state stays in registers.
    """
    if device.type != "cuda":
        return B, n
    resident = _multiprocessors(device)
    images = min(B, max(1, resident // blocks(n, 1024)))
    return images, max(16 if n <= 1024 else 32, blocks(n, resident // images))


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count

"""The greedy as one launch: all steps of all images, whether by determinant (Script) or by distance (DivPrune).

An image's tokens are shared out to P programs, each of which keeps the state of its own in registers. The launch is
cooperative and has at most one program a multiprocessor: either all of them run at once or the launch fails, so that
none waits for one that cannot start.

u is the Cholesky factor of the chosen: a row for each token, a column for each choice. A step by itself would read all
of u, to which it adds a column, and a row of the kernel. So steps go in panels:

- Every program publishes its best tokens in a few words and reads all words. Each then knows the choice, and the tokens
  that look best next. What programs wrote before an exchange, all can read after it.
- The rows of these tokens are made in one pass over u (and over the features, if there is no kernel matrix).
- Values only fall. So as long as the best of the tokens ahead, whose values every program knows, is above all that any
  other token had at the exchange, it is the choice: no word is needed, and its row is there.
- When that is no longer so, u gets a column for each choice, and the next panel begins.

How many choices fusion by rule "supplement" needs is known after m: as many more as the graph does not keep of these.
Every program knows every choice, so that all of an image count alike, and stop at the same one.
"""

from functools import cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..numerics import TIE
from .ahead import halves, look_ahead, rows
from .launch import blocks, is_roomy, launch, power
from .words import delay, exchange, first_reaching, largest, read_words

WORDS = 4  #: a program's, of which all but one name a token
PATIENT = 512  #: steps after which rows that are not slow to make are kept too as long as they serve


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


@triton.jit(do_not_specialize=["n", "k", "m", "c", "share", "P"])  # or there would be more to compile
def _greedy(
    kernel, x, table, nearest, inside, survives, at, u, slots, lists, order, gains, place,
    n, d, k, m, c, share, P, depth, half, eps, tolerance, one,
    DISTANCE: tl.constexpr, ROWS: tl.constexpr, POOL: tl.constexpr, STOP: tl.constexpr, LIST: tl.constexpr,
    SHARED: tl.constexpr, EXACT: tl.constexpr, WORDS: tl.constexpr, LANES: tl.constexpr, BLOCK: tl.constexpr,
    Q: tl.constexpr, CHUNK: tl.constexpr, CHANNELS: tl.constexpr, PATIENT: tl.constexpr, JITTER: tl.constexpr,
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
    is_ahead = lane < 0
    outside = float("-inf")  # no token that is not ahead has more
    exchanges = 0
    was_spent = p < 0
    scale = 0.0
    unit = 0.0
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
    names = tl.full([Q], -1, tl.int64)
    survive = tl.zeros([Q], tl.int32)
    both = 0  # of the choices so far, those that survive
    ranks = k  # how many choices there are to be, which with STOP is known after m
    t = 0
    while t < ranks:
        was_first = t == 0
        fresh = was_first | (t == c)  # v² only falls, so the first of a phase is the largest
        value = v2
        if POOL:
            value = tl.where(pool | (t >= c), v2, float("-inf"))
        step = slots + ((exchanges % 2) * images + b) * 3 * WORDS * P
        exchanges += 1
        if SHARED:
            if JITTER:
                delay(t, p)
            words = exchange(step, p, value, is_ahead, exchanges, P, WORDS, LANES)
            scores, tokens, marked, rest = read_words(words, share, P, WORDS, LANES)
        else:
            tl.debug_barrier()  # u has been written by other threads
            scores, tokens, marked, rest = value, lane, is_ahead, largest(tl.full([BLOCK], float("-inf"), tl.float32))
        best = largest(scores)
        spent = t < 0
        if not DISTANCE:
            if fresh:
                scale = tl.maximum(scale, best)
                tie = tolerance * scale
                unit = 1.0 / tl.sqrt_rn(scale)
            spent = best <= (tolerance + 8 * eps) * scale
            if spent:  # go on by the diagonal
                value = tl.where(value == float("-inf"), value, start)
                if SHARED:
                    words = exchange(step + WORDS * P, p, value, is_ahead, exchanges, P, WORDS, LANES)
                    scores, tokens, marked, rest = read_words(words, share, P, WORDS, LANES)
                else:
                    scores = value
                best = largest(scores)
        j, own = first_reaching(scores, best - tie, tokens, scores)
        if SHARED and rest >= best - tie:  # a program has more ties than it named
            first, _ = first_reaching(value, best - tie, lane, value)
            only = tl.where(lane == first, value, float("-inf"))
            words = exchange(step + 2 * WORDS * P, p, only, is_ahead, exchanges, P, WORDS, LANES)
            firsts, their_tokens, _, _ = read_words(words, share, P, WORDS, LANES)
            j, own = first_reaching(firsts, best - tie, their_tokens, firsts)
        j = tl.minimum(j, n - 1)  # it always is, unless numbers are not finite
        kept = (t >= PATIENT) & (tl.max((ahead == j).to(tl.int32), 0) > 0) & (fresh == 0) & (spent == was_spent)
        was_spent = spent
        if kept:
            outside = tl.maximum(rest, largest(tl.where(marked, float("-inf"), scores)))
        else:
            ahead, ahead_v2, outside = look_ahead(scores, tokens, rest, j, own, lists + (b * P + p) * Q, Q)
            is_ahead = tl.max((tl.arange(0, BLOCK)[None, :] + p * share == ahead[:, None]).to(tl.int32), 0) > 0
            names = ahead.to(tl.int64)
            if LIST:
                names = tl.load(at + base + names, mask=ahead >= 0, other=0)
            if STOP:
                survive = tl.load(survives + base + ahead, mask=ahead >= 0, other=0).to(tl.int32)
            if (t + 1 < ranks) & (spent == 0):
                left, among = rows(
                    kernel, x, table, u, base, size, ahead, i, mine, t, n, d, depth, half, scale, one,
                    DISTANCE, ROWS, EXACT, BLOCK, Q, CHUNK, CHANNELS,
                )  # fmt: skip
        came = tl.full([Q], -1, tl.int32)
        gain = tl.zeros([Q], tl.float32)
        sure = t >= 0
        while sure:
            is_j = ahead == j
            own = largest(tl.where(is_j, ahead_v2, float("-inf")))
            came = tl.where(is_j, t, came)
            gain = tl.where(is_j, own, gain)
            if spent == 0:  # a spent token adds no direction; dividing by its v² would only magnify noise
                of_ahead = tl.sum(tl.where(is_j[:, None], among, 0.0), 0)
                if DISTANCE:
                    ahead_v2 = tl.where((t == 0) | (1.0 - of_ahead < ahead_v2), 1.0 - of_ahead, ahead_v2)
                    outside = tl.where(t == 0, float("inf"), outside)  # what it began with was no distance to a choice
                else:
                    inverse = 1.0 / tl.sqrt_rn(own + eps * scale)
                    e = tl.sum(tl.where(is_j[:, None], left, 0.0), 0) * inverse
                    of_ahead = tl.where(ahead_v2 > float("-inf"), of_ahead * inverse, 0.0)
                    left = tl.where(is_j[:, None], e[None, :], left - of_ahead[:, None] * e[None, :])
                    among -= of_ahead[:, None] * of_ahead[None, :]
                    v2 -= e * e
                    ahead_v2 -= of_ahead * of_ahead
            ahead_v2 = tl.where(is_j | (ahead < 0), float("-inf"), ahead_v2)
            t += 1
            best = largest(ahead_v2)
            sure = (t < ranks) & (t != c) & (best - tie > outside)
            if STOP:
                sure = sure & (t != m)
            if not DISTANCE:
                sure = sure & (spent | (best > (tolerance + 8 * eps) * scale))
            j = tl.min(tl.where(ahead_v2 >= best - tie, ahead, 0x3FFFFFFF), 0)
        if STOP:
            both += tl.sum(tl.where((came >= 0) & (came < m), survive, 0), 0)
            if t == m:
                ranks = tl.minimum(2 * m - both, k)
        if p == 0:
            rank = b.to(tl.int64) * k + came
            tl.store(order + rank, names, mask=came >= 0)
            tl.store(gains + rank, tl.where(spent, 0.0, gain), mask=came >= 0)
        chosen = tl.max(tl.where(i[None, :] == ahead[:, None], came[:, None], -1), 0)
        chosen_at = tl.where(chosen >= 0, chosen, chosen_at)
        free = (v2 > float("-inf")) & (chosen < 0)
        if (t < ranks) & (spent == 0):
            if DISTANCE:
                nearer = 1.0 - tl.max(tl.where((came >= 0)[:, None], left, -2.0), 0)
                v2 = tl.where((nearer < v2) | was_first, nearer, v2)
            else:
                steps = u + ((base + i) * depth)[:, None] + came[None, :]  # of a token, and so next to each other
                on = mine[:, None] & (came >= 0)[None, :]
                if EXACT:
                    tl.store(steps, tl.trans(left), mask=on)
                else:
                    high, low = halves(tl.trans(left) * unit)
                    tl.store(steps, high, mask=on)
                    tl.store(steps + half, low, mask=on)
        v2 = tl.where(free, v2, float("-inf"))
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
    exact = exact or (candidates is not None and candidates.shape[1] < k)  # then there are two scales
    images, share = shares(B, n, source.device) if share is None else (B, share)
    on_demand = kernel is None
    P, (size, ahead, warps) = blocks(n, share), program(n, share, exact, on_demand)
    depth = blocks(k, 64) * 64
    device = source.device
    order = torch.empty(B, k, dtype=torch.int64, device=device)
    gains = torch.empty(B, k, dtype=torch.float32, device=device)
    place = torch.empty(B, n, dtype=torch.int32, device=device)
    half = images * n * depth
    u = order
    if nearest is None:
        u = torch.zeros(half if exact else 2 * half, dtype=torch.float32 if exact else torch.float16, device=device)
    lists = torch.empty(images * P * ahead, dtype=torch.int64, device=device)
    inside = place
    if candidates is not None:
        inside = torch.zeros(B, n, dtype=torch.int8, device=device).scatter_(1, candidates, 1)
    roomy = is_roomy(device)
    chunk = 16 if exact or size > 256 else 64 if size <= (128 if roomy else 64) else 32
    stages = 1 if size > 512 else 3 if size <= 128 and roomy else 2
    options = {"num_warps": warps, "num_stages": stages, "launch_cooperative_grid": P > 1}
    for start in range(0, B, images):
        count = min(images, B - start)

        def cut(t: Tensor, dim: int = 0, start: int = start, count: int = count) -> Tensor:
            return t if count == B else t.narrow(dim, start, count).contiguous()

        if start and nearest is None:
            u.zero_()
        slots = torch.zeros(6 * WORDS * count * P, dtype=torch.int64, device=device) if P > 1 else order
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
                lists,
                cut(order),
                cut(gains),
                cut(place),
            ),
            (
                n,
                x.shape[2],
                k,
                m,
                0 if candidates is None else candidates.shape[1],
                share,
                P,
                depth,
                half,
                eps,
                TIE,
                1.0,
            ),
            options=options,
            DISTANCE=nearest is not None,
            ROWS=on_demand,
            POOL=candidates is not None,
            STOP=survives is not None,
            LIST=at is not None,
            SHARED=P > 1,
            EXACT=exact,
            WORDS=WORDS,
            LANES=max(power(WORDS * P), 32 * warps),
            BLOCK=size,
            Q=ahead,
            CHUNK=chunk,
            CHANNELS=max(16, min(64, 8192 // size)),
            PATIENT=0 if exact or on_demand else PATIENT,
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


def program(n: int, share: int, exact: bool = False, on_demand: bool = False) -> tuple[int, int, int]:
    """Of a program with `share` of n tokens: the tokens it has room for, the rows it makes at once, and its warps.

    More rows where an image has many, unless each takes long to make.
    """
    size = max(16, power(share))
    ahead = 16 if exact or n <= 4096 or share > 256 else 32 if on_demand or share > 128 else 64
    return size, ahead, 4 if size <= 64 and ahead == 16 else 8


@cache
def _multiprocessors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count

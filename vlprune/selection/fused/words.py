"""The words by which programs of one launch tell each other their best tokens, and wait for each other.

A word is a value, the lane of its token, a mark, and the number of the exchange, by which a reader knows that it is
new. Words lie in two alternating buffers. A program writes one again only after all have published the step in between,
which each does after it has read the buffer.
"""

import triton
import triton.language as tl


@triton.jit
def pack(value, low):
    return (value.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low.to(tl.int64)


@triton.jit
def unpack(words):
    return (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def in_order(value):
    """Floats as integers of the same order."""
    bits = value.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def _bits(ordered):
    """What `in_order` came from, as bits."""
    return ordered ^ ((ordered >> 31) & 0x7FFFFFFF)


@triton.jit
def largest(value):
    """The largest of a block of floats, as integers: those a warp compares in one instruction."""
    return _bits(tl.max(in_order(value), 0)).to(tl.float32, bitcast=True)


@triton.jit
def _read(slots):
    return tl.inline_asm_elementwise(
        "ld.relaxed.gpu.global.b64 $0, [$1];", "=l,l", [slots.to(tl.int64)], dtype=tl.int64, is_pure=False, pack=1
    )


MARK, LEAST = tl.constexpr(1 << 30), tl.constexpr(-(2**63))


@triton.jit
def _fence(value):
    return tl.inline_asm_elementwise(
        "fence.acq_rel.gpu; mov.b64 $0, $1;", "=l,l", [value], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def exchange(slots, p, value, marked, tag, P, WORDS: tl.constexpr, LANES: tl.constexpr):
    """Publish this program's WORDS − 1 largest values with their lanes and marks, and the largest but for these.

    Return all programs' words, WORDS by program. What any program stored before is visible to all after. LANES is no
    less than the threads, so that no word is read by two threads, which might see different ones.
    """
    tag = tag & 0xFFFF
    lane, place = tl.arange(0, value.shape[0]), tl.arange(0, WORDS)
    # ordered by value, then from the highest lane to the lowest
    keys = (in_order(value).to(tl.int64) << 32) | ((0x3FFF - lane) * 2 + marked.to(tl.int32)).to(tl.int64)
    own = tl.zeros([WORDS], tl.int64)
    for q in tl.static_range(WORDS):
        best = tl.max(keys, 0)
        keys = tl.where(keys == best, LEAST, keys)
        name = (0x3FFF - ((best >> 1) & 0x3FFF)) * 65536 + (best & 1) * MARK
        own = tl.where(place == q, (_bits((best >> 32).to(tl.int32)).to(tl.int64) << 32) | name | tag, own)
    tl.debug_barrier()
    own = _fence(own)
    tl.atomic_xchg(slots + p * WORDS + place, own, sem="relaxed", scope="gpu")
    at = slots + tl.minimum(tl.arange(0, LANES), P * WORDS - 1)
    words = _read(at)
    while tl.max(((words ^ tag) & 0xFFFF).to(tl.int32), 0) > 0:
        words = _read(at)
    words = _fence(words)
    tl.debug_barrier()
    return words


@triton.jit
def first_reaching(value, least, key, result):
    """The lowest key whose value is at least `least`, and its result."""
    first = tl.min(tl.where(value >= least, key, 0x3FFFFFFF), 0)
    return first, largest(tl.where(key == first, result, float("-inf")))


@triton.jit
def read_words(words, share, P, WORDS: tl.constexpr, LANES: tl.constexpr):
    """Of all programs' words: the values of those that name a token, their tokens and marks; the rest's largest value.

    Words that are no program's, or name no token, have −inf.
    """
    place = tl.arange(0, LANES)
    values = tl.where(place < P * WORDS, unpack(words), float("-inf"))
    names = place % WORDS < WORDS - 1
    tokens = place // WORDS * share + ((words >> 16) & 0x3FFF).to(tl.int32)
    marked = (words & MARK) != 0
    rest = largest(tl.where(names, float("-inf"), values))
    return tl.where(names, values, float("-inf")), tokens, marked, rest


@triton.jit
def delay(t, p):
    """Some programs wait up to 8 µs in some steps, in no pattern, to bring races out."""
    tl.inline_asm_elementwise(
        "{ .reg .u32 n; and.b32 n, $1, 8191; nanosleep.u32 n; mov.u32 $0, n; }",
        "=r,r",
        [(t * 40503 + p * 60493) * ((t * 7 + p * 13) % 5 == 0).to(tl.int32)],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )

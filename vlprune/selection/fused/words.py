"""The words by which programs of one launch tell each other their best tokens, and the barrier between them.

Words lie in two alternating buffers. A program writes one again only after all have published the step in between,
which each does after it has read the buffer.
"""

import triton
import triton.language as tl


@triton.jit
def _pack(value, low):
    return (value.to(tl.int32, bitcast=True).to(tl.int64) << 32) | low.to(tl.int64)


@triton.jit
def unpack(words):
    return (words >> 32).to(tl.int32).to(tl.float32, bitcast=True)


@triton.jit
def largest(value):
    """The largest of a block of floats, as integers of the same order: those a warp compares in one instruction."""
    bits = value.to(tl.int32, bitcast=True)
    best = tl.max(bits ^ ((bits >> 31) & 0x7FFFFFFF), 0)
    return (best ^ ((best >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _read(slots):
    return tl.inline_asm_elementwise(
        "ld.relaxed.gpu.global.b64 $0, [$1];", "=l,l", [slots.to(tl.int64)], dtype=tl.int64, is_pure=False, pack=1
    )


@triton.jit
def exchange(slots, p, value, top, named, reached, tag, P, LANES: tl.constexpr):
    """Publish this program's largest value, the lane it would choose with its value, and the largest but for that;
    return all programs'.

    LANES is no less than the threads, so that no word is read by two threads, which might see different ones.
    """
    tag = tag & 0xFFFF
    other = largest(tl.where(tl.arange(0, value.shape[0]) == named, float("-inf"), value))
    tl.atomic_xchg(slots + p, _pack(top, named * 65536 + tag), sem="relaxed", scope="gpu")
    tl.atomic_xchg(slots + P + p, _pack(reached, tag), sem="relaxed", scope="gpu")
    tl.atomic_xchg(slots + 2 * P + p, _pack(other, tag), sem="relaxed", scope="gpu")
    at = slots + tl.minimum(tl.arange(0, LANES), P - 1)
    tops, values, others = _read(at), _read(at + P), _read(at + 2 * P)
    while tl.max((((tops ^ tag) | (values ^ tag) | (others ^ tag)) & 0xFFFF).to(tl.int32), 0) > 0:
        tops, values, others = _read(at), _read(at + P), _read(at + 2 * P)
    return tops, values, others


@triton.jit
def barrier(slots, p, tag, P, LANES: tl.constexpr):
    """What any program wrote before is visible to all after."""
    tl.debug_barrier()
    tl.atomic_xchg(slots + p, tag.to(tl.int64), sem="release", scope="gpu")
    at = slots + tl.minimum(tl.arange(0, LANES), P - 1)
    words = _read(at)
    while tl.min((words == tag).to(tl.int32), 0) == 0:
        words = _read(at)
    tl.inline_asm_elementwise(
        "fence.acq_rel.gpu; mov.b64 $0, $1;", "=l,l", [words], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.debug_barrier()


@triton.jit
def first_reaching(value, least, key, result):
    """The lowest key whose value is at least `least`, and its result."""
    first = tl.min(tl.where(value >= least, key, 0x3FFFFFFF), 0)
    return first, largest(tl.where(key == first, result, float("-inf")))


@triton.jit
def choice(tops, values, least, share, P, LANES: tl.constexpr):
    """The token named by the lowest program that reaches `least`, its value, and all programs' values and tokens."""
    program = tl.minimum(tl.arange(0, LANES), P - 1)
    scores, tokens = unpack(tops), program * share + ((tops >> 16) & 0xFFFF).to(tl.int32)
    # shares are in order: the lowest program has the lowest token
    j, own = first_reaching(scores, least, tokens, unpack(values))
    return j, own, scores, tokens


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

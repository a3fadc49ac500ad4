"""Latency of one exchange of words between the programs of the greedy kernel, on this GPU: part of its floor."""

import statistics

import torch
import triton
import triton.language as tl

from vlprune.selection.fused.greedy import WORDS
from vlprune.selection.fused.words import exchange


@triton.jit
def _exchange_loop(slots, steps, P, WORDS: tl.constexpr, LANES: tl.constexpr):
    lane = tl.arange(0, 128)
    for t in range(steps):
        step = slots + (t % 2) * WORDS * P
        exchange(step, tl.program_id(0), lane.to(tl.float32), lane < 0, t + 1, P, WORDS, LANES)


def exchange_ms(P: int, warps: int = 4, steps: int = 500) -> float:
    """Milliseconds of an exchange between P programs, median of seven launches; 0 for a single program."""
    if P == 1:
        return 0.0
    times = []
    lanes = max(triton.next_power_of_2(WORDS * P), 32 * warps)
    for _ in range(7):
        slots = torch.zeros(2 * WORDS * P, dtype=torch.int64, device="cuda")
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        _exchange_loop[(P,)](slots, steps, P, WORDS=WORDS, LANES=lanes, num_warps=warps, launch_cooperative_grid=True)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times) / steps

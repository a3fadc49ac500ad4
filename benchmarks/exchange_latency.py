"""Latency of one exchange of words between the programs of the greedy kernel, on this GPU: part of its floor."""

import statistics

import torch
import triton
import triton.language as tl

from vlprune.selection.fused.words import exchange


@triton.jit
def _exchange_loop(slots, steps, P, LANES: tl.constexpr):
    value = tl.zeros([LANES], tl.float32)
    for t in range(steps):
        exchange(slots + (t % 2) * 3 * P, tl.program_id(0), value, 0.0 * t, 0 * t, 0.0 * t, t + 1, P, LANES)


def exchange_ms(P: int, warps: int = 4, steps: int = 500) -> float:
    """Milliseconds of an exchange between P programs, median of seven launches; 0 for a single program."""
    if P == 1:
        return 0.0
    times = []
    for _ in range(7):
        slots = torch.zeros(6 * P, dtype=torch.int64, device="cuda")
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        lanes = max(triton.next_power_of_2(P), 32 * warps)
        start.record()
        _exchange_loop[(P,)](slots, steps, P, LANES=lanes, num_warps=warps, launch_cooperative_grid=True)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times) / steps

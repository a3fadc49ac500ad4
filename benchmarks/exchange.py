"""What one exchange of words between programs costs on this GPU: the floor of a greedy step that they share."""

import statistics

import torch
import triton
import triton.language as tl

from vlprune.selection.fused.greedy import _exchange


@triton.jit
def _ping(slots, steps, P, LANES: tl.constexpr):
    for t in range(steps):
        _exchange(slots + (t % 2) * 2 * P, tl.program_id(0), 0.0 * t, 0 * t, 0.0 * t, t + 1, P, LANES)


def exchange_ms(P: int, warps: int = 4, steps: int = 500) -> float:
    """Milliseconds an exchange between P programs takes; 0 if there is nobody to talk to."""
    if P == 1:
        return 0.0
    times = []
    for _ in range(7):
        slots = torch.zeros(4 * P, dtype=torch.int64, device="cuda")
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        lanes = max(triton.next_power_of_2(P), 32 * warps)
        start.record()
        _ping[(P,)](slots, steps, P, LANES=lanes, num_warps=warps, launch_cooperative_grid=True)
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end))
    return statistics.median(times) / steps

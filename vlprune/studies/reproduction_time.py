"""How long an answer may take on a GPU: estimated from what was measured on an H200 (docs/performance.md)."""

from __future__ import annotations

from typing import NamedTuple

#: Dense bfloat16 TFLOP/s and TB/s of memory by NVIDIA's data sheets (SXM modules; the A100 with 80 GB).
GPUS = {"H200": (989, 4.8), "H100": (989, 3.35), "A100": (312, 2.04)}


class Pair(NamedTuple):
    """Milliseconds with all tokens, and with few."""

    whole: float
    pruned: float


class Speed(NamedTuple):
    """What one question at a time takes on an H200: to the `first` token, and a `step` for each further one.

    Both in eager transformers, where the GPU may wait for the host, and as CUDA graphs, where it does not.
    """

    first: Pair
    step: Pair
    first_graphs: Pair
    step_graphs: Pair


#: The rows of "What it takes" in docs/performance.md, by the model's name there; pruned by Script.
SPEEDS = {
    "LLaVA-1.5-7B": Speed(Pair(41.8, 37.7), Pair(23.8, 22.9), Pair(20.1, 9.9), Pair(6.1, 6.0)),
    "LLaVA-NeXT-7B": Speed(Pair(104, 45.7), Pair(23.2, 23.4), Pair(81.3, 19.8), Pair(6.6, 6.1)),
    "LLaVA-Video-7B": Speed(Pair(507, 152), Pair(21.6, 21.0), Pair(444, 108), Pair(14.0, 7.4)),
}


def answer_seconds(model: str, gpu: str, tokens: int, *, pruned: bool) -> float:
    """An estimate: seconds for an answer of so many tokens by one of `SPEEDS`, in eager transformers.

    As long as on the H200, or as its CUDA graphs times what the GPU is slower, if that is longer: in operations for
    the first token, in reading memory for the others.

    >>> f"{answer_seconds('LLaVA-NeXT-7B', 'H200', 1, pruned=False):.2f}"
    '0.10'
    >>> f"{answer_seconds('LLaVA-NeXT-7B', 'A100', 1, pruned=False):.2f}"
    '0.26'
    """
    speed, at = SPEEDS[model], int(pruned)
    slower = [mine / its for mine, its in zip(GPUS["H200"], GPUS[gpu])]
    first = max(speed.first[at], speed.first_graphs[at] * slower[0])
    step = max(speed.step[at], speed.step_graphs[at] * slower[1])
    return (first + max(0, tokens - 1) * step) / 1000

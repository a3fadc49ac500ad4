"""Checks of values that come from the caller and go to the greedy as they are."""

import triton
import triton.language as tl
from torch import Tensor

from .device_errors import tell
from .launch import blocks, launch, power


@triton.jit
def _matrix(kernel, word, n, BLOCK: tl.constexpr):
    row, b = tl.program_id(0), tl.program_id(1)
    bad = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(kernel + (b.to(tl.int64) * n + row) * n + at, mask=at < n, other=0.0)
        bad += ((tl.abs(value) < float("inf")) == 0).to(tl.int32)
    tell(word, bad > 0, 5, b, tl.zeros([BLOCK], tl.int32) + row)


@triton.jit
def _indices(ranked, word, c, n, BLOCK: tl.constexpr):
    """Sorted indices of one image: tell if two are equal or one is not in range."""
    b = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = ranked + b.to(tl.int64) * c + at
    value = tl.load(here, mask=at < c, other=0)
    before = tl.load(here - 1, mask=(at > 0) & (at < c), other=-1)
    tell(word, (at < c) & ((value < 0) | (value >= n) | (value == before)), 6, b, at)


def kernel_values(kernel: Tensor, word: Tensor) -> None:
    """Tell of a value in the kernel (B, n, n) that is not finite."""
    B, n, _ = kernel.shape
    block = min(power(n), 1024)
    launch(_matrix, (n, B), (kernel, word), (n,), options={"num_warps": 4}, BLOCK=block)


def indices(candidates: Tensor, n: int, word: Tensor) -> Tensor:
    """The candidates (B, c) ascending and within n tokens; tell if they were not, or are not distinct."""
    ranked = candidates.sort(dim=1).values
    B, c = ranked.shape
    launch(_indices, (blocks(c, 256), B), (ranked, word), (c, n), options={"num_warps": 4}, BLOCK=256)
    return ranked.clamp_(0, n - 1)

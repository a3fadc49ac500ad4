"""Checks, on the device, of a kernel and of candidates that the caller gave."""

import triton
import triton.language as tl
from torch import Tensor

from .device_errors import BAD_CANDIDATES, BAD_KERNEL, write_fault
from .launch import blocks, launch, power


@triton.jit
def _matrix(kernel, word, n, BLOCK: tl.constexpr):
    """One row of the kernel: write a fault if a value is not finite."""
    row, b = tl.program_id(0), tl.program_id(1)
    bad = tl.zeros([BLOCK], tl.int32)
    for start in range(0, n, BLOCK):
        at = start + tl.arange(0, BLOCK)
        value = tl.load(kernel + (b.to(tl.int64) * n + row) * n + at, mask=at < n, other=0.0)
        bad += ((tl.abs(value) < float("inf")) == 0).to(tl.int32)
    write_fault(word, bad > 0, BAD_KERNEL, b, tl.zeros([BLOCK], tl.int32) + row)


@triton.jit
def _indices(ranked, word, c, n, BLOCK: tl.constexpr):
    """Sorted indices of one image: write a fault if two are equal or one is not in range."""
    b = tl.program_id(1)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    here = ranked + b.to(tl.int64) * c + at
    value = tl.load(here, mask=at < c, other=0)
    before = tl.load(here - 1, mask=(at > 0) & (at < c), other=-1)
    write_fault(word, (at < c) & ((value < 0) | (value >= n) | (value == before)), BAD_CANDIDATES, b, at)


def check_kernel(kernel: Tensor, word: Tensor) -> None:
    """Write a fault if a value of the kernel (B, n, n) is not finite."""
    B, n, _ = kernel.shape
    block = min(power(n), 1024)
    launch(_matrix, (n, B), (kernel, word), (n,), options={"num_warps": 4}, BLOCK=block)


def check_candidates(candidates: Tensor, n: int, word: Tensor) -> Tensor:
    """The candidates (B, c), ascending and within n tokens; write a fault if they were not, or are not distinct."""
    ranked = candidates.sort(dim=1).values
    B, c = ranked.shape
    launch(_indices, (blocks(c, 256), B), (ranked, word), (c, n), options={"num_warps": 4}, BLOCK=256)
    return ranked.clamp_(0, n - 1)

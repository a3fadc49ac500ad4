"""Faults that kernels find in values, passed to the host without waiting for the device.

A word of pinned memory per device is written by a kernel that meets a fault and read by the host before its next call.
Pinned memory is mapped into the device, so this costs nothing while all is well and works inside a CUDA graph too.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from vlprune.captured_graph import capture_lock

BAD_FEATURES = tl.constexpr(1)
BAD_QUERY = tl.constexpr(2)
EMPTY_MASK = tl.constexpr(3)
BAD_RELEVANCE = tl.constexpr(4)
BAD_KERNEL = tl.constexpr(5)
BAD_CANDIDATES = tl.constexpr(6)
BAD_SCORES = tl.constexpr(7)
_SENTENCES = {
    BAD_FEATURES.value: "features at batch {b}, token {i}: must be finite in float32",
    BAD_QUERY.value: "query at batch {b}: must be finite in float32",
    EMPTY_MASK.value: "query_mask without any True at batch {b}: must leave at least one query token per image",
    BAD_RELEVANCE.value: "relevance at batch {b}, token {i}: must be finite and not negative",
    BAD_KERNEL.value: "kernel at batch {b}, row {i}: must be finite in float32",
    BAD_CANDIDATES.value: "candidates at batch {b}: must be distinct and within the tokens",
    BAD_SCORES.value: "scores at batch {b}, token {i}: must be finite in float32",
}
_words: dict[torch.device, Tensor] = {}


@triton.jit
def write_fault(word, bad, code: tl.constexpr, b, i):
    """Where `bad` (a block) holds, write fault `code`, batch b, token i to the host; any one of several stays."""
    value = (tl.zeros_like(i) + code).to(tl.int64) * (1 << 56) + b.to(tl.int64) * (1 << 32) + i.to(tl.int64)
    tl.store(word + tl.zeros_like(i), value, mask=bad)


def fault_word(device: torch.device) -> Tensor:
    """The device's word, to be given to kernels, after the fault of an earlier call has been raised."""
    found = _words.get(device)
    if found is None:
        found = torch.zeros(1, dtype=torch.int64, pin_memory=device.type == "cuda")
        _words[device] = found
    _raise(device, found)
    return found


def check(device: torch.device | str | None = None) -> None:
    """Wait for the device (all of them by default) and raise the fault that its kernels have found, if any."""
    for place, found in list(_words.items()):
        if device is None or torch.device(device) == place:
            if place.type == "cuda":
                with capture_lock:
                    torch.cuda.synchronize(place)
            _raise(place, found)


def _raise(device: torch.device, found: Tensor) -> None:
    """Raise the fault in the word, if any, and clear it."""
    value = found.item()  # host memory: no wait
    if value:
        found.zero_()
        b, i = (int(value) >> 32) & 0xFFFFFF, int(value) & 0xFFFFFFFF
        sentence = _SENTENCES[int(value) >> 56].format(b=b, i=i)
        raise ValueError(f"{sentence} (found on {device} in an earlier call, whose result is void).")

"""Faults that kernels find in values, told to the host without waiting for the device.

A word of pinned memory per device is written by a kernel that meets a fault and read by the host before its next call.
Pinned memory is mapped into the device, so this costs nothing while all is well and works inside a CUDA graph too.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

FEATURES, QUERY, MASK, RELEVANCE, KERNEL, CANDIDATES, SCORES = range(1, 8)
_SENTENCES = {
    FEATURES: "features must be finite in float32, got a value that is not at batch {b}, token {i}",
    QUERY: "query must be finite in float32, got a value that is not at batch {b}",
    MASK: "query_mask must leave at least one query token per image, got none for batch {b}",
    RELEVANCE: "relevance must be finite and not negative, got a value that is not at batch {b}, token {i}",
    KERNEL: "kernel must be finite in float32, got a value that is not at batch {b}, row {i}",
    CANDIDATES: "candidates must be distinct and within the tokens, got one that is not at batch {b}",
    SCORES: "scores must be finite in float32, got a value that is not at batch {b}, token {i}",
}
_words: dict[torch.device, Tensor] = {}


@triton.jit
def tell(word, bad, code: tl.constexpr, b, i):
    """Where `bad` (a block) holds, write argument `code`, batch b, token i to the host; any one of several stays."""
    value = (tl.zeros_like(i) + code).to(tl.int64) * (1 << 56) + b.to(tl.int64) * (1 << 32) + i.to(tl.int64)
    tl.store(word + tl.zeros_like(i), value, mask=bad)


def word(device: torch.device) -> Tensor:
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
                torch.cuda.synchronize(place)
            _raise(place, found)


def _raise(device: torch.device, found: Tensor) -> None:
    value = found.item()  # host memory: no wait
    if value:
        found.zero_()
        b, i = (int(value) >> 32) & 0xFFFFFF, int(value) & 0xFFFFFFFF
        sentence = _SENTENCES[int(value) >> 56].format(b=b, i=i)
        raise ValueError(f"{sentence} (seen on {device} by an earlier call, whose result is void).")

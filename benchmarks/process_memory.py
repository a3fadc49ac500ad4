"""This process's memory: all of it, what malloc has given out, what is left after trimming, and how they grow."""

import ctypes
import gc
import os
from typing import Any, ClassVar

import numpy as np


def resident() -> float:
    """This process's memory in MiB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


class MallocInfo(ctypes.Structure):
    """glibc's `struct mallinfo2`, in bytes: `uordblks` are in use in all arenas, `hblkhd` in mappings of their own."""

    _names = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")
    _fields_: ClassVar[list[Any]] = [(name, ctypes.c_size_t) for name in _names]


def in_use() -> float:
    """The MiB that malloc has given out and not got back; NaN without glibc. Python's small objects are not in it."""
    try:
        ask = ctypes.CDLL(None).mallinfo2
    except AttributeError:
        return float("nan")
    ask.restype = MallocInfo
    info = ask()
    return (info.uordblks + info.hblkhd) / 2**20


def trimmed() -> float:
    """This process's memory in MiB after malloc has given back what is free in it."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    return resident()


def told(samples: list[tuple[int, float]], where: str) -> str:
    """First, last and largest of the samples, and MiB per 1,000 calls over the last three quarters and second half."""
    if len(samples) < 8:
        return f"{where}: too few samples"
    slopes = []
    for first in (len(samples) // 4, len(samples) // 2):
        late = np.array(samples[first:])
        slopes.append(f"{np.polyfit(late[:, 0], late[:, 1], 1)[0] * 1000:+.2f}")
    sizes = [size for _, size in samples]
    return (
        f"{where} {sizes[0]:.0f} to {sizes[-1]:.0f} MiB, {max(sizes):.0f} at most, {slopes[0]} MiB per 1,000 calls "
        f"({slopes[1]} in the second half)"
    )

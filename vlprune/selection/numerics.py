"""Full float32 precision, unit vectors, and sorting and choosing with ties."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

TIE = 2e-6
"""Two values closer than this, on a scale where 1 is large, are equal, and the lower index wins.

A cosine or a conditional variance in float32 carries a rounding error of a few 1e-7, which depends on the
device and on the batch it was computed in. The tolerance is above it, so that tokens which are equal on paper
(duplicates, equal relevance) are equal here; it is far below any difference that means something.
"""


@contextmanager
def exact_float32(device: torch.device) -> Iterator[None]:
    """Full float32 products without gradients, whatever autocast or TF32 setting surrounds the call."""
    autocast = torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)
    with _full_precision, torch.no_grad():
        if autocast:
            with torch.autocast(device.type, enabled=False):
                yield
        else:
            yield


class _FullPrecision:
    """Inside, products of float32 are not rounded to TF32: a setting of the process, of all its threads.

    The first thread that comes makes it so, and the last that leaves undoes it.
    """

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._restore: Callable[[], None] | None = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._restore = _raise_precision()
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self._restore is not None:
                self._restore()
                self._restore = None


_full_precision = _FullPrecision()


def _raise_precision() -> Callable[[], None] | None:
    """Set full precision, and return what brings the setting back; None if it is full."""
    knobs: list[Any] = [getattr(kind, "matmul", None) for kind in (torch.backends.cuda, torch.backends.mkldnn)]
    if all(hasattr(knob, "fp32_precision") for knob in knobs):
        old = [knob.fp32_precision for knob in knobs]
        if all(value in ("none", "ieee") for value in old):
            return None
        _set_precisions(knobs, ["ieee"] * len(knobs))
        return partial(_set_precisions, knobs, old)
    one = torch.get_float32_matmul_precision()  # torch < 2.9 has only this switch
    if one == "highest":
        return None
    torch.set_float32_matmul_precision("highest")
    return partial(torch.set_float32_matmul_precision, one)


def _set_precisions(knobs: list[Any], values: list[str]) -> None:
    for knob, value in zip(knobs, values):
        knob.fp32_precision = value


def wide(device: torch.device) -> torch.dtype:
    """The dtype for sums along channels: float64, so that they round alike everywhere (float32 on MPS)."""
    return torch.float32 if device.type == "mps" else torch.float64


def unit_vectors(x: Tensor) -> tuple[Tensor, Tensor]:
    """Divide float32 vectors (..., d) by their length; return them and the lengths (..., 1).

    A zero vector stays zero. A length is finite exactly when its vector is, so it serves as the finite check.

    >>> unit_vectors(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))[0]
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    length = lengths(x)
    return divided(x, length), length


def lengths(x: Tensor) -> Tensor:
    """The lengths (..., 1) of vectors (..., d)."""
    return torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=wide(x.device))


def divided(x: Tensor, length: Tensor) -> Tensor:
    """Vectors (..., d) divided by their lengths (..., 1); a zero vector stays zero."""
    return x / length.clamp(min=torch.finfo(torch.float32).tiny).to(torch.float32)


def first_best(values: Tensor, tolerance: Tensor) -> Tensor:
    """The lowest index (B,) whose value is within `tolerance` (B, 1) of the largest of its row of `values` (B, n).

    >>> first_best(torch.tensor([[1.0, 2.0, 2.1]]), torch.tensor([[0.2]])).tolist()
    [1]
    """
    near = values >= values.amax(1, keepdim=True) - tolerance
    return near.view(torch.uint8).argmax(1)  # argmax returns the first of equals


def ascending(values: Tensor) -> Tensor:
    """The indices (B, n) that sort `values` (B, n) from the smallest to the largest, ties by index.

    Neighbours in sorted order are tied when they differ by at most TIE relative to the larger (to 1 if both
    are smaller), and a run of ties is put in index order.

    >>> ascending(torch.tensor([[0.5, 0.2, 0.2 - 1e-7]])).tolist()
    [[1, 2, 0]]
    """
    n = values.shape[1]
    ranked, at = values.sort(dim=1)
    size = torch.maximum(ranked[:, 1:].abs(), ranked[:, :-1].abs()).clamp(min=1.0)
    step = ranked[:, 1:] - ranked[:, :-1] > TIE * size
    run = torch.nn.functional.pad(step.cumsum(1), (1, 0))
    return (run * n + at).sort(dim=1).values % n


def take(values: Tensor, indices: Tensor) -> Tensor:
    """The rows (B, m, d) of `values` (B, n, d) at `indices` (B, m)."""
    return values.gather(1, indices[:, :, None].expand(-1, -1, values.shape[2]))

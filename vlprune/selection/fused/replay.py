"""Record small selections as CUDA graphs, and replay them.

A selection of a few hundred tokens keeps the GPU busy for less time than Python needs to launch its kernels. From the
second call of the same shapes and settings on, the kernels run as one graph on copies of the inputs; where inputs keep
coming at the same addresses, as from an allocator in a steady loop, another graph reads them in place. Large selections
hide their launches, and would hold on to much memory; inside a caller's own capture there is nothing to gain.
"""

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

from vlprune.captured_graph import CapturedGraph, capture_lock
from vlprune.types import Selection

from .device_errors import fault_word

SMALL = 1 << 26
"""Bytes of features and kernel matrix up to which a selection is replayed."""

KEPT, HELD = 256, 8 * SMALL
"""The kinds of call, by shapes and settings, whose recordings are held, the latest used, and their bytes."""

COPIED = ("kept", "order", "redundancy", "relevance", "scores", "gains")
"""The fields of a recorded `Selection`."""

STEADY = 4
"""Calls in a row with inputs at the same addresses before they are read in place: a recording costs a few calls."""


Result = TypeVar("Result", Selection, Tensor)


@dataclass
class Recording:
    """A CUDA graph, and the tensors it reads, none if they are the caller's own."""

    graph: CapturedGraph
    inputs: list[Tensor]


@dataclass
class Kind:
    """Calls of the same shapes and settings, whose features and kernel matrix have `size` bytes."""

    size: int
    copying: Recording | None = None
    in_place: Recording | None = None
    addresses: tuple[int, ...] = ()  # of the latest call's inputs
    steady: int = 0  # calls before it with the same
    failed: bool = False  # to be recorded


_kinds: OrderedDict[tuple[Any, ...], Kind] = OrderedDict()
_lock = threading.RLock()  # what is recorded may itself call what can be


def replayed(function: Callable[..., Result], tensors: dict[str, Tensor | None], settings: dict[str, Any]) -> Result:
    """`function(**tensors, **settings)`, replayed if a call of the same shapes and settings was recorded.

    The function is one of a module's own, so that it is the same in each call. One of the tensors is named "features".
    """
    x = tensors["features"]
    assert x is not None
    B, n, d = x.shape
    size = B * n * (d * x.element_size() + 4 * n)
    if x.device.type != "cuda" or size > SMALL or torch.cuda.is_current_stream_capturing():
        return function(**tensors, **settings)
    index = x.device.index
    shapes: list[Any] = [None if tensor is None else (tensor.shape, tensor.dtype) for tensor in tensors.values()]
    key = (function, torch._C._cuda_getCurrentRawStream(index), index, *settings.values(), *shapes)
    with _lock:  # inputs must not change between copy and replay
        fault_word(x.device)
        kind = _kinds.get(key)
        if kind is None:  # the first call compiles the kernels, which cannot be recorded
            _kinds[key] = Kind(size)
            _forget_old(_kinds)
            return function(**tensors, **settings)
        _kinds.move_to_end(key)
        given = [tensor for tensor in tensors.values() if tensor is not None]
        recording = _recording(kind, function, given, tensors, settings)
        if recording is None:
            return function(**tensors, **settings)
        if recording.inputs:
            with torch.no_grad():
                for inside, outside in zip(recording.inputs, given):
                    inside.copy_(outside, non_blocking=True)
        return _copy(recording.graph.replay())


def _forget_old(kinds: OrderedDict[Any, Kind]) -> None:
    """Forget the kinds that were used longest ago, until the rest may be held."""
    while len(kinds) > KEPT or sum(kind.size for kind in kinds.values()) > HELD:
        kinds.popitem(last=False)


def _recording(
    kind: Kind,
    function: Callable[..., Any],
    given: list[Tensor],
    tensors: dict[str, Tensor | None],
    settings: dict[str, Any],
) -> Recording | None:
    """The recording to replay for these inputs, made now if there is none; None where it cannot be made.

    While another thread captures it is not made yet, and after a failure not any more.
    """
    if kind.failed:
        return None
    addresses = tuple([tensor.data_ptr() for tensor in given])
    if addresses != kind.addresses:
        kind.addresses, kind.steady, kind.in_place = addresses, 0, None
    kind.steady += 1
    try:
        if kind.steady > STEADY and all([tensor.is_contiguous() for tensor in given]):
            kind.in_place = kind.in_place or _record(function, tensors, settings, in_place=True)
            return kind.in_place
        kind.copying = kind.copying or _record(function, tensors, settings, in_place=False)
        return kind.copying
    except RuntimeError as error:  # somebody waits for the whole device meanwhile, or memory is short
        kind.failed = True
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        warnings.warn(f"vlprune: a selection runs without its CUDA graph, which failed ({reason}).", stacklevel=2)
        return None


def _record(
    function: Callable[..., Any], tensors: dict[str, Tensor | None], settings: dict[str, Any], *, in_place: bool
) -> Recording | None:
    """Record a call: on the caller's tensors if `in_place`, else on tensors to copy the caller's into.

    None while another thread captures: its capture may itself wait for the lock that is held here.
    """
    if not capture_lock.acquire(blocking=False):
        return None
    try:
        with torch.inference_mode(False), torch.no_grad():  # what is made here outlives this call's mode
            if not in_place:
                tensors = {
                    name: None if t is None else torch.empty_like(t, memory_format=torch.contiguous_format)
                    for name, t in tensors.items()
                }
            inputs = [tensor for tensor in tensors.values() if tensor is not None]
            graph = CapturedGraph(lambda: function(**tensors, **settings), inputs[0].device)
        return Recording(graph, [] if in_place else inputs)
    finally:
        capture_lock.release()


def _copy(result: Any) -> Any:
    """The result in tensors of its own: the next replay overwrites the recording's."""

    def own(tensor: Tensor | None) -> Any:
        return None if tensor is None else tensor.clone()

    if isinstance(result, Tensor):
        return own(result)
    return Selection(**{name: own(getattr(result, name)) for name in COPIED})

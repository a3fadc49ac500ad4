"""Small selections again and again: recorded once as a CUDA graph, then replayed.

A selection of a few hundred tokens keeps the GPU busy for less time than Python needs to launch its kernels. From the
second call of the same shapes and settings on, the kernels run as one graph on copies of the inputs. Large selections
hide their launches, and would hold on to much memory; inside a caller's own capture there is nothing to gain.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from ..types import Selection
from . import report

SMALL = 1 << 26
"""Bytes of features and kernel matrix up to which a selection is replayed."""

KEPT = 8
"""Recordings that are held, the latest used."""


@dataclass
class Recording:
    """A graph, the tensors it reads and those it writes."""

    graph: torch.cuda.CUDAGraph
    inputs: list[Tensor]
    result: Selection


_recordings: OrderedDict[tuple[Any, ...], Recording | None] = OrderedDict()
_lock = threading.Lock()


def replayed(
    function: Callable[..., Selection], tensors: dict[str, Tensor | None], settings: dict[str, Any]
) -> Selection:
    """`function(**tensors, **settings)`, from a recording if there is one for the like of it."""
    x = tensors["features"]
    assert x is not None
    B, n, d = x.shape
    size = B * n * (d * x.element_size() + 4 * n)
    if x.device.type != "cuda" or size > SMALL or torch.cuda.is_current_stream_capturing():
        return function(**tensors, **settings)
    given = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    shapes = [(name, tensor.shape, tensor.dtype) for name, tensor in given.items()]
    key = (torch._C._cuda_getCurrentRawStream(x.device.index), x.device, *settings.values(), *shapes)
    with _lock:  # inputs must not change between copy and replay
        report.word(x.device)
        if key not in _recordings:  # the first call compiles the kernels, which cannot be recorded
            _recordings[key] = None
            while len(_recordings) > KEPT:
                _recordings.popitem(last=False)
            return function(**tensors, **settings)
        recording = _recordings[key]
        if recording is None:
            recording = _recordings[key] = _record(function, given, settings)
        _recordings.move_to_end(key)
        with torch.no_grad():
            for inside, outside in zip(recording.inputs, given.values()):
                inside.copy_(outside, non_blocking=True)
        recording.graph.replay()
        return _copy(recording.result)


def _record(function: Callable[..., Selection], given: dict[str, Tensor], settings: dict[str, Any]) -> Recording:
    names = ("features", "query", "query_mask", "relevance")
    with torch.inference_mode(False), torch.no_grad():  # the copies outlive this call's mode
        inputs = {
            name: torch.empty_like(tensor, memory_format=torch.contiguous_format) for name, tensor in given.items()
        }
        graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(given["features"].device)
        side = torch.cuda.Stream(stream.device)
        side.wait_stream(stream)
        with torch.cuda.stream(side):
            graph.capture_begin(capture_error_mode="thread_local")
            try:
                result = function(**{name: inputs.get(name) for name in names}, **settings)
            finally:
                graph.capture_end()
        stream.wait_stream(side)
    return Recording(graph, list(inputs.values()), result)


def _copy(result: Selection) -> Selection:
    found = {field.name: getattr(result, field.name) for field in fields(result)}
    copies: dict[str, Any] = {name: value.clone() for name, value in found.items() if isinstance(value, Tensor)}
    return replace(result, **copies)

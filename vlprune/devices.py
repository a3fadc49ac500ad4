"""Where a model takes its inputs; clocks and copies that do not wait for the device."""

import time
from typing import Any

import torch
from torch import Tensor


def copy_to_device(values: Tensor, device: torch.device) -> Tensor:
    """A CPU tensor on a device; a plain copy would wait until the device has done all it was told before."""
    if device.type in ("cpu", "mps"):
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def input_device(model: Any) -> torch.device:
    """The device on which a transformers model takes its prompt.

    That is where its table of embeddings lies, or, where accelerate keeps its weights on another device or on disk
    until they are needed, where it runs.

    >>> from types import SimpleNamespace
    >>> input_device(SimpleNamespace(get_input_embeddings=lambda: torch.nn.Embedding(2, 3)))
    device(type='cpu')
    """
    table = model.get_input_embeddings()
    hook = getattr(table, "_hf_hook", None)
    for one in getattr(hook, "hooks", [hook]):
        if getattr(one, "execution_device", None) is not None:
            return torch.device(one.execution_device)
    return table.weight.device


class Stopwatch:
    """Seconds in its `with` blocks, all together; on a GPU by events that are read only when `seconds` is asked for.

    >>> watch = Stopwatch(torch.device("cpu"))
    >>> for _ in range(2):
    ...     with watch:
    ...         pass
    >>> watch.seconds >= 0
    True
    """

    def __init__(self, device: torch.device, share: int = 1) -> None:
        self._device = device
        self._share = share
        self._marks: list[float | torch.cuda.Event] = []

    def __enter__(self) -> None:
        self._marks.append(self._now())

    def __exit__(self, *error: object) -> None:
        self._marks.append(self._now())

    def _now(self) -> "float | torch.cuda.Event":
        if self._device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def __deepcopy__(self, memo: object) -> "Stopwatch":
        """Itself: it does not change any more, and a GPU's events cannot be copied (a kept cache's records may be)."""
        return self

    @property
    def seconds(self) -> float:
        """Elapsed seconds, divided by the number of images that shared the work."""
        return sum(map(_between, self._marks[::2], self._marks[1::2])) / self._share


def _between(start: "float | torch.cuda.Event", stop: "float | torch.cuda.Event") -> float:
    if isinstance(start, float) or isinstance(stop, float):
        assert isinstance(start, float)
        assert isinstance(stop, float)
        return stop - start
    stop.synchronize()
    return start.elapsed_time(stop) / 1000.0

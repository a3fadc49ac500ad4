"""CUDA graphs beside other threads and streams: one capture and one replay at a time."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

#: Held while a graph is captured, and by whoever waits for a whole device: CUDA refuses that meanwhile, and gives up
#: the capture. Reentrant: a capture inside another is to fail, as torch has it, not to wait for itself.
capture_lock = threading.RLock()


class StreamOrder:
    """Lets work on a CUDA device follow the work before it, whatever streams the two are on.

    What is kept in one place, a graph's memory or a library's workspace, serves one call at a time.
    """

    def __init__(self) -> None:
        self._latest: torch.cuda.Stream | None = None

    def follow(self, device: torch.device) -> None:
        """Let the current stream, but not the host, wait for that of the call before.

        Not while it is captured: what is captured runs later, and cannot wait for what runs now.
        """
        if device.type != "cuda":
            return
        stream = torch.cuda.current_stream(device)
        if not torch.cuda.is_current_stream_capturing():
            if self._latest is not None and self._latest != stream:  # a stream that is compared with None says "equal"
                stream.wait_stream(self._latest)
            self._latest = stream


class CapturedGraph:
    """What a function of no arguments does on a CUDA device, as a graph: the same to the same memory.

    `result` is what it returned; a replay writes it anew. The function has to have run before, and draws no random
    numbers. `pool` is the memory that graphs of one owner share. On a device replays follow each other even on
    different streams: graphs captured by one thread share cuBLAS's workspace.
    """

    def __init__(self, function: Callable[[], Any], device: torch.device, pool: Any = None) -> None:
        here = torch.cuda.current_stream(device)
        self._graph, self._device = torch.cuda.CUDAGraph(), here.device
        with capture_lock:
            self._lock, self._order = _replays.setdefault(here.device, (threading.Lock(), StreamOrder()))
            side = _capture_stream(here.device)
            side.wait_stream(here)
            with torch.cuda.stream(side):
                with _spare_random_state(here.device):
                    self._graph.capture_begin(pool, capture_error_mode="thread_local")
                try:
                    self.result = function()
                finally:
                    self._graph.capture_end()
            here.wait_stream(side)

    def __deepcopy__(self, memo: object) -> "CapturedGraph":
        """The graph itself: it reads and writes the memory that it was captured on, which nobody can move."""
        return self

    def replay(self) -> Any:
        """Do it again, on the current stream; returns `result`."""
        with self._lock:  # another thread's replay must not come between
            self._order.follow(self._device)
            self._graph.replay()
        return self.result


_capture_streams: dict[torch.device, torch.cuda.Stream] = {}
_replays: dict[torch.device, tuple[threading.Lock, StreamOrder]] = {}


def _capture_stream(device: torch.device) -> torch.cuda.Stream:
    """The stream that we capture on: what anybody does there meanwhile becomes part of the graph, and is not done.

    torch hands out the same 32 streams of a priority again and again, so it is of one that nobody else takes.
    """
    if device not in _capture_streams:
        _capture_streams[device] = torch.cuda.Stream(device, priority=-2)
    return _capture_streams[device]


@contextmanager
def _spare_random_state(device: torch.device) -> Iterator[None]:
    """Inside, the device's random numbers have a state that nobody needs.

    torch marks the state that it finds when a capture begins, and until it ends, for good if it fails, no other thread
    could draw a number from it.
    """
    generator = torch.cuda.default_generators[device.index]
    state = generator.graphsafe_get_state()
    generator.graphsafe_set_state(generator.clone_state())
    try:
        yield
    finally:
        generator.graphsafe_set_state(state)

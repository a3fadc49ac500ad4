"""Capture of functions as CUDA graphs, compilation of a decoder's layers, and what a captured graph depends on."""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from vlprune.captured_graph import CapturedGraph, capture_lock
from vlprune.pruning.patched_attributes import patched_attributes

#: Takes a function of no arguments, and returns one that does the same to the same memory.
Capture = Callable[[Callable[[], Any]], Callable[[], Any]]


class CudaGraphCapture:
    """Captures functions as CUDA graphs that share one pool of memory: one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()
        self._graphs: weakref.WeakSet[CapturedGraph] = weakref.WeakSet()

    def __deepcopy__(self, memo: object) -> CudaGraphCapture:
        """Another one: a model's copy runs beside the model, so its graphs need memory of their own."""
        return CudaGraphCapture(self._device)

    def __call__(self, function: Callable[[], Any]) -> Callable[[], Any]:
        with capture_lock, torch.cuda.device(self._device):
            for _ in range(2):  # libraries allocate and choose in their first calls, compilers compile
                function()
            torch.cuda.current_stream(self._device).synchronize()  # to wait for the device would spoil others' captures
            torch.cuda.empty_cache()  # a capture that is short of memory could not free any
            in_use = list(self._graphs)  # held while the next one is captured: torch refuses a pool whose last is gone
            if not in_use:
                self._pool = torch.cuda.graph_pool_handle()
            graph = CapturedGraph(function, self._device, self._pool)
            self._graphs.add(graph)
            return graph.replay


class SideStream:
    """A second stream of a CUDA device: what runs there is not waited for when the host waits for the first.

    On other devices everything runs in its turn.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # torch hands out the same 32 streams of a priority again and again, those of 0 to anybody who captures
        self._stream = torch.cuda.Stream(device, priority=-1) if device.type == "cuda" else None

    def __deepcopy__(self, memo: object) -> SideStream:
        """Another one: a model's copy has a stream of its own."""
        return SideStream(self._device)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Inside, work goes to the side stream, behind all that the current one has been given so far."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            yield

    def join(self) -> None:
        """Let the current stream, but not the host, wait for the side stream."""
        if self._stream is not None:
            torch.cuda.current_stream(self._device).wait_stream(self._stream)


class Capturing:
    """Whether and how functions are captured on a model's device.

    `capture` takes the place of CUDA's own, on any device. After a failure nothing is captured any more; `warn` is told
    why, once.
    """

    def __init__(self, model: Any, capture: Capture | None, warn: Callable[[str], None]) -> None:
        self._model, self._capture, self._warn = model, capture, warn
        #: Why nothing is captured any more.
        self.failure: str | None = None

    def capture(self) -> Capture | None:
        """How to capture; None where it cannot be done."""
        if self.failure is not None:
            return None
        if self._capture is None and self._model.device.type == "cuda":
            self._capture = CudaGraphCapture(self._model.device)
        return self._capture

    def stop(self, error: Exception) -> None:
        """Capture nothing from now on."""
        self.failure = f"they could not be captured ({(str(error).splitlines() or [''])[0]})"
        self._warn(self.failure)


def no_capture(function: Callable[[], Any]) -> Callable[[], Any]:
    """Return the function itself: for tests, on any device."""
    return function


class CompiledLayers:
    """A decoder's layers, compiled once for all of them; they run so inside `with compiled_layers.installed(cache)`.

    The decoder's rotary embedding and last norm are compiled too. A layer differs from its neighbour in its weights,
    its number and its part of the cache. Weights are inputs of what is compiled; so that the rest is, too, each layer
    is given its own part as the whole cache, and is number 0.
    """

    def __init__(self, decoder: Any, backend: str = "inductor") -> None:
        self._decoder = decoder
        self._compiled_call = torch.compile(call_function, backend=backend)

    @contextmanager
    def installed(self, cache: Any) -> Iterator[None]:
        """Inside, the decoder's layers run compiled, on this cache."""
        with ExitStack() as stack:
            stack.enter_context(many_compilations())
            for module in (getattr(self._decoder, name, None) for name in ("rotary_emb", "norm")):
                if module is not None:
                    compiled = functools.partial(self._compiled_call, type(module).forward, module)
                    stack.enter_context(patched_attributes(module, {"forward": compiled}))
            for layer, layer_cache in zip(self._decoder.layers, cache.layers):
                forward = self._layer_forward(layer, layer.forward, layer_cache)
                stack.enter_context(patched_attributes(layer, {"forward": forward}))
                for child in layer.children():
                    if isinstance(child.__dict__.get("layer_idx"), int):
                        stack.enter_context(patched_attributes(child, {"layer_idx": 0}))
            yield

    def _layer_forward(self, layer: Any, original: Any, layer_cache: Any) -> Callable[..., Any]:
        class_forward = type(layer).forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("past_key_values") is None:
                return original(*args, **kwargs)
            return self._compiled_call(class_forward, layer, *args, **{**kwargs, "past_key_values": layer_cache})

        return forward


def many_compilations() -> AbstractContextManager[Any]:
    """Inside, one function may be compiled for more kinds of inputs than torch allows by itself."""
    settings = torch._dynamo.config
    name = "recompile_limit" if hasattr(settings, "recompile_limit") else "cache_size_limit"  # torch 2.6
    limit: AbstractContextManager[Any] = settings.patch({name: 64})
    return limit


def call_function(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """To be compiled: modules of one class whose forward is called so share what is made."""
    return function(*args, **kwargs)


class ModuleState(NamedTuple):
    """What a captured graph depends on.

    `weight_addresses` changes when a weight moves: graphs read the weights where they were (and see what is written
    there); and when a part is replaced. `hooked`: somebody else than transformers (which collects outputs so) has hooks
    inside, which a replay would not call, or accelerate moves weights.
    """

    weight_addresses: Hashable
    hooked: bool


class ModuleInspector:
    """Looks at a module's weight addresses and hooks, fast enough to be asked for each replay.

    Its parts are listed once, and anew when they change: to walk through them takes longer than all else.

    >>> layer = nn.Sequential(nn.Linear(2, 2))
    >>> inspect = ModuleInspector(layer)
    >>> before = inspect()
    >>> layer[0].weight = nn.Parameter(torch.ones(2, 2))
    >>> inspect().weight_addresses == before.weight_addresses, inspect().hooked
    (False, False)
    """

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self._changes = 0  # of its parts
        self._list_parts()

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleInspector:
        """One for the module's copy."""
        return ModuleInspector(copy.deepcopy(self.module, memo))

    def __call__(self) -> ModuleState:
        """What the module is like now."""
        if any(self._empty) or [list(one.values()) for one in self._children] != self._listed:
            self._changes += 1
            self._list_parts()
        addresses = [weight.data_ptr() for one in self._weights for weight in one.values() if weight is not None]
        hooks = [hook for one in self._hooks if one for hook in one.values()]
        hooked = any(not str(getattr(hook, "__module__", "")).startswith("transformers.") for hook in hooks)
        return ModuleState(
            hash((self._changes, *addresses)), hooked or any("_hf_hook" in own for own in self._attributes)
        )

    def _list_parts(self) -> None:
        self._attributes = [one.__dict__ for one in self.module.modules()]
        parts = [own[kind] for own in self._attributes for kind in ("_modules", "_parameters")]
        self._empty = [one for one in parts if not one]
        self._children = [own["_modules"] for own in self._attributes if own["_modules"]]
        self._listed = [list(one.values()) for one in self._children]
        self._weights = [own["_parameters"] for own in self._attributes if own["_parameters"]]
        inside = self._attributes[1:]  # the module's own hooks are called with a replay
        self._hooks = [own[kind] for own in inside for kind in ("_forward_hooks", "_forward_pre_hooks")]

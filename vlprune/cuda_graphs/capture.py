"""Run a function now, and again and again as one launch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn

from vlprune.pruning.patched_attributes import patched_attributes

#: Takes a function of no arguments, and gives one that does the same to the same memory.
Capture = Callable[[Callable[[], Any]], Callable[[], Any]]


class CudaGraphs:
    """Captures functions as CUDA graphs that share one pool of memory: one runs at a time."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, function: Callable[[], Any]) -> Callable[[], Any]:
        with torch.cuda.device(self._device):
            return self._captured(function)

    def _captured(self, function: Callable[[], Any]) -> Callable[[], Any]:
        here, side = torch.cuda.current_stream(), torch.cuda.Stream()
        side.wait_stream(here)
        with torch.cuda.stream(side):
            for _ in range(2):  # libraries allocate and choose in their first calls, compilers compile
                function()
        here.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = function()

        def replay() -> Any:
            graph.replay()
            return result

        return replay


def direct(function: Callable[[], Any]) -> Callable[[], Any]:
    """No capture: the function itself. For tests, on any device."""
    return function


class Compiled:
    """The decoder's layers, compiled once for all of them: inside `with compiled.layers(cache)` they run so, as do
    its positions and its last norm.

    A layer differs from its neighbour in its weights, its number and its part of the cache. Weights are inputs of what
    is compiled; so that the rest is, too, each layer is given its own slots as the whole cache, and is number 0.
    """

    def __init__(self, decoder: Any, backend: str = "inductor") -> None:
        self._decoder = decoder
        self.calls = torch.compile(_call, backend=backend)

    @contextmanager
    def layers(self, cache: Any) -> Iterator[None]:
        with ExitStack() as stack:
            stack.enter_context(torch._dynamo.config.patch(recompile_limit=64))
            for part in (getattr(self._decoder, name, None) for name in ("rotary_emb", "norm")):
                if part is not None:
                    stack.enter_context(
                        patched_attributes(part, {"forward": functools.partial(self.calls, type(part).forward, part)})
                    )
            for layer, slots in zip(self._decoder.layers, cache.layers):
                stack.enter_context(patched_attributes(layer, {"forward": self._forward(layer, layer.forward, slots)}))
                for part in layer.children():
                    if isinstance(part.__dict__.get("layer_idx"), int):
                        stack.enter_context(patched_attributes(part, {"layer_idx": 0}))
            yield

    def _forward(self, layer: Any, plain: Any, slots: Any) -> Callable[..., Any]:
        kind = type(layer).forward

        def forward(*args: Any, **kwargs: Any) -> Any:
            if kwargs.get("past_key_values") is None:
                return plain(*args, **kwargs)
            return self.calls(kind, layer, *args, **{**kwargs, "past_key_values": slots})

        return forward


def _call(kind: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return kind(*args, **kwargs)


class Inspected(NamedTuple):
    """`stamp` changes when a weight moves: graphs read the weights where they were (and see what is written there).
    `hooked`: somebody else than transformers (which collects outputs so) has hooks inside, which a replay passes by."""

    stamp: Hashable
    hooked: bool


def inspect(module: nn.Module) -> Inspected:
    """What a replay depends on, in one walk: it is taken before each of them, and `nn.Module`'s own are slow.

    >>> layer = nn.Sequential(nn.Linear(2, 2))
    >>> before = inspect(layer)
    >>> layer[0].weight = nn.Parameter(torch.ones(2, 2))
    >>> inspect(layer).stamp == before.stamp, inspect(layer).hooked
    (False, False)
    """
    places: list[int] = []
    hooked, parts, seen = False, [module], {module}
    for part in parts:  # which grows
        for child in part._modules.values():
            if child is not None and child not in seen:
                seen.add(child)
                parts.append(child)
        for weight in part._parameters.values():
            if weight is not None:
                places.append(weight.data_ptr())
        if (part._forward_hooks or part._forward_pre_hooks) and part is not module:
            hooks = (*part._forward_hooks.values(), *part._forward_pre_hooks.values())
            hooked |= any(not str(getattr(hook, "__module__", "")).startswith("transformers.") for hook in hooks)
    return Inspected(hash(tuple(places)), hooked)

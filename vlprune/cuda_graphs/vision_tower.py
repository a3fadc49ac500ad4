"""CUDA graphs of a vision tower, one for each shape of its pixels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from vlprune.cuda_graphs.capture import Capture, Capturing, ModuleInspector
from vlprune.pruning.feature_cache import tower_settings

#: Towers whose forward a graph can hold: others read sizes on the host.
TOWERS = ("clip_vision_model", "siglip_vision_model", "internvl_vision", "dinov2", "dinov2_with_registers")
#: More images than these fill the GPU, so that launches are no longer what takes the time.
MAX_IMAGES = 8
#: Shapes of pixels whose graphs are kept.
MAX_SHAPES = 4
#: Shapes whose calls are counted.
MAX_COUNTED = 64


def find_towers(model: Any) -> list[Any]:
    """The model's towers that are among `TOWERS`."""
    children = model.base_model.children() if hasattr(model, "base_model") else []
    return [child for child in children if getattr(getattr(child, "config", None), "model_type", None) in TOWERS]


def tower_layers(tower: Any) -> list[Any]:
    """The layers of a tower, in order; of any kind, where `vlprune.vision` wants those that it can take apart."""
    lists = [one for one in tower.modules() if isinstance(one, torch.nn.ModuleList)]
    return next((list(one) for one in lists if len(one) == tower.config.num_hidden_layers), [])


class TowerGraphs:
    """A tower's graphs, one for each shape of pixels and each set of options; the last few are kept.

    What comes for the `seen`-th time is captured.
    """

    def __init__(self, forward: Callable[..., Any], seen: int) -> None:
        self._forward, self._seen = forward, seen
        self._calls: OrderedDict[Hashable, int] = OrderedDict()
        self._graphs: OrderedDict[Hashable, tuple[Tensor, Callable[[], Any]]] = OrderedDict()
        self._captured_weights: Hashable = None

    def get(
        self, pixels: Tensor, options: dict[str, Any], weights: Hashable, capture: Capture
    ) -> tuple[Tensor, Callable[[], Any]] | None:
        """The memory that a graph reads its pixels from, and its replay; None where it is not yet to be captured."""
        if self._captured_weights != weights:
            self._graphs.clear()
            self._captured_weights = weights
        key = (pixels.shape, pixels.dtype, tuple(sorted(options.items())))
        if key not in self._graphs:
            if not self._is_due(key):
                return None
            held = pixels.clone()
            while len(self._graphs) >= MAX_SHAPES:
                self._graphs.popitem(last=False)
            self._graphs[key] = held, capture(lambda: self._forward(held, **options))
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def _is_due(self, key: Hashable) -> bool:
        """Whether a call without a graph is to be captured; counts it."""
        calls = self._calls.pop(key, 0) + 1
        self._calls[key] = calls
        while len(self._calls) > MAX_COUNTED:
            self._calls.popitem(last=False)
        return calls >= self._seen


def tower_forward(tower: Any, original: Callable[..., Any], capturing: Capturing, seen: int) -> Callable[..., Any]:
    """A forward for the tower that replays graphs; calls that graphs do not cover go to the original.

    So do all calls while a CheaperTower is at work, whose changes inside the tower a graph would not see.
    """
    graphs, inspect = TowerGraphs(original, seen), ModuleInspector(tower)

    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or any(tower_settings([tower])):
            return original(*args, **kwargs)
        capture, options = capturing.capture(), dict(kwargs)
        pixels: Any = options.pop("pixel_values", None) if not args else args[0]
        covered = len(args) <= 1 and _covers(pixels, options) and not torch.is_autocast_enabled(pixels.device.type)
        if capture is None or not covered or torch.is_grad_enabled() or tower.training:
            return original(*args, **kwargs)
        weights, hooked = inspect()
        if hooked:
            return original(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():  # what is captured outlives an inference mode
            try:
                graph = graphs.get(pixels, options, weights, capture)
            except RuntimeError as error:
                capturing.stop(error)
                graph = None
            if graph is not None:
                held, replay = graph
                held.copy_(pixels)
                return _copy_tensors(replay())  # the next replay overwrites what a graph returns
        return original(*args, **kwargs)

    forward.graphed = True  # type: ignore[attr-defined]
    return forward


def _covers(pixels: Any, options: dict[str, Any]) -> bool:
    """Whether a graph can stand for a call of the tower with these arguments."""
    return (
        isinstance(pixels, Tensor)
        and pixels.ndim == 4
        and 0 < len(pixels) <= MAX_IMAGES
        and all(value is None or isinstance(value, (bool, int, str)) for value in options.values())
    )


def _copy_tensors(output: Any) -> Any:
    """The same output with copies of its tensors, made all at once: a tower may return the states of all its layers."""
    leaves, structure = tree_flatten(output)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    copies = [torch.empty_like(tensor) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, tensors)
    remaining = iter(copies)
    return tree_unflatten([next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)

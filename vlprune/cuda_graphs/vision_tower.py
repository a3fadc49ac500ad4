"""CUDA graphs of a vision tower, one for each shape of its pixels, or for each list of image sizes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from vlprune.captured_graph import StreamOrder
from vlprune.cuda_graphs.capture import Capture, Capturing, ModuleInspector
from vlprune.cuda_graphs.grouped_attention import grouped_attention
from vlprune.pruning.feature_cache import tower_settings

#: Towers of images of one size, whose forward a graph can hold as it is.
IMAGE_TOWERS = ("clip_vision_model", "siglip_vision_model", "internvl_vision", "dinov2", "dinov2_with_registers")
#: Towers of patches of images of any size, whose forward reads the sizes on the host unless it is told them.
PATCH_TOWERS = ("qwen2_vl_vision", "qwen2_5_vl_vision", "qwen3_vl_vision")
#: More images than these fill the GPU, so that launches are no longer what takes the time.
MAX_IMAGES = 8
#: More patches than these fill the GPU, and a graph would hold much memory.
MAX_PATCHES = 16_384
#: Shapes of pixels whose graphs are kept.
MAX_SHAPES = 4
#: Shapes whose calls are counted.
MAX_COUNTED = 64


def find_towers(model: Any) -> list[Any]:
    """The model's towers that graphs can hold."""
    children = model.base_model.children() if hasattr(model, "base_model") else []
    known = (*IMAGE_TOWERS, *PATCH_TOWERS)
    return [child for child in children if getattr(getattr(child, "config", None), "model_type", None) in known]


def is_graphed(tower: Any) -> bool:
    """Whether its forward is one of `tower_forward`, of this model or of another that shares the tower."""
    return hasattr(tower.__dict__.get("forward"), "graphed")


def tower_layers(tower: Any) -> list[Any]:
    """The layers of a tower of images, in order; of any kind, where `vlprune.vision` wants those it can take apart."""
    lists = [one for one in tower.modules() if isinstance(one, torch.nn.ModuleList)]
    count = getattr(tower.config, "num_hidden_layers", None)
    return next((list(one) for one in lists if len(one) == count), [])


class TowerGraph(NamedTuple):
    """A graph, the memory that it reads the pixels from, and what else it reads, which must live as long."""

    pixels: Tensor
    others: dict[str, Any]
    replay: Callable[[], Any]


class TowerGraphs:
    """A tower's graphs, one for each shape of pixels, sizes and set of options; the last few are kept.

    What comes for the `seen`-th time is captured.
    """

    def __init__(self, tower: Any, forward: Callable[..., Any], capturing: Capturing, seen: int) -> None:
        self._tower, self._forward, self._capturing, self._seen = tower, forward, capturing, seen
        self._order = StreamOrder()
        self._calls: OrderedDict[Hashable, int] = OrderedDict()
        self._graphs: OrderedDict[Hashable, TowerGraph] = OrderedDict()
        self._captured_weights: Hashable = None

    def replay(self, pixels: Tensor, sizes: Tensor | None, options: dict[str, Any], weights: Hashable) -> Any:
        """What the tower returns, by a graph; None where there is none for such a call.

        `sizes` (N, 3) are those of a tower of patches.
        """
        with torch.inference_mode(False), torch.no_grad():  # what is captured outlives an inference mode
            if (capture := self._capturing.capture()) is None:
                return None
            try:
                graph = self._get(pixels, sizes, options, weights, capture)
            except RuntimeError as error:
                self._capturing.stop(error)
                return None
            if graph is None:
                return None
            self._order.follow(pixels.device)
            graph.pixels.copy_(pixels)
            return _copy_tensors(graph.replay())  # the next replay overwrites what a graph returns

    def _get(
        self, pixels: Tensor, sizes: Tensor | None, options: dict[str, Any], weights: Hashable, capture: Capture
    ) -> TowerGraph | None:
        """The graph for such a call; None where it is not yet due."""
        if self._captured_weights != weights:
            self._graphs.clear()
            self._captured_weights = weights
        if sizes is not None and len(pixels) > MAX_PATCHES:
            return None
        images = None if sizes is None else tuple(map(tuple, sizes.tolist()))
        key = (pixels.shape, pixels.dtype, images, tuple(sorted(options.items())))
        if key not in self._graphs:
            if not self._is_due(key):
                return None
            held = pixels.clone()
            others, attention = told_sizes(self._tower, sizes)
            others |= options
            while len(self._graphs) >= MAX_SHAPES:
                self._graphs.popitem(last=False)
            with attention:
                replay = capture(lambda: self._forward(held, **others))
            self._graphs[key] = TowerGraph(held, others, replay)
        self._graphs.move_to_end(key)
        return self._graphs[key]

    def _is_due(self, key: Hashable) -> bool:
        """Whether a call without a graph is to be captured; counts it."""
        calls = self._calls.pop(key, 0) + 1
        self._calls[key] = calls
        while len(self._calls) > MAX_COUNTED:
            self._calls.popitem(last=False)
        return calls >= self._seen


def told_sizes(tower: Any, sizes: Tensor | None) -> tuple[dict[str, Any], AbstractContextManager[None]]:
    """What spares a tower of patches to work it out from the images' sizes (N, 3): arguments, and how to attend.

    All that its forward computes from the sizes. Where sequences end is on the host, where it splits by it; what its
    kernels read is on the device. Nothing, where there are no sizes.
    """
    from transformers import vision_utils

    if sizes is None:
        return {}, nullcontext()
    merge, ends = tower.spatial_merge_size, vision_utils.get_vision_cu_seqlens(sizes).cpu()
    told = {
        "grid_thw": sizes.cpu(),
        "cu_seqlens": ends,
        "max_seqlen": int(ends.diff().max()),
        "position_ids": vision_utils.get_vision_position_ids(sizes, merge),
    }
    if hasattr(tower, "window_size"):  # Qwen2.5-VL
        windows, ends = vision_utils.get_vision_window_index(sizes, merge, tower.window_size, tower.patch_size)
        ends = ends.cpu()
        told |= {"window_index": windows.to(sizes.device), "cu_window_seqlens": ends}
        told |= {"max_window_seqlen": int(ends.diff().max())}
    if hasattr(tower, "interpolation_mode"):  # Qwen3-VL
        mode = {"mode": tower.interpolation_mode, "align_corners": tower.interpolation_align_corners}
        indices, weights = vision_utils.get_vision_interpolation_indices_and_weights(
            sizes, num_grid_per_side=tower.num_grid_per_side, spatial_merge_size=merge, **mode
        )
        told |= {"interp_indices": indices, "interp_weights": weights}
    return told, grouped_attention(tower.config)


def tower_forward(
    tower: Any, original: Callable[..., Any], capturing: Capturing | None, seen: int = 1
) -> Callable[..., Any]:
    """A forward for the tower that replays graphs; calls that graphs do not cover go to the original.

    So do all calls while a CheaperTower is at work, whose changes inside the tower a graph would not see. A tower of
    patches is told sizes where there is no graph, too: not yet, for too many patches, or because nothing is captured.
    """
    graphs = None if capturing is None else TowerGraphs(tower, original, capturing, seen)
    inspect = ModuleInspector(tower)
    lock = threading.RLock()  # of models that share the tower, in threads: graphs and the way to attend are for one

    def forward(*args: Any, **kwargs: Any) -> Any:
        if torch.compiler.is_compiling() or any(tower_settings([tower])):
            return original(*args, **kwargs)
        with lock:
            return run(*args, **kwargs)

    def run(*args: Any, **kwargs: Any) -> Any:
        options = dict(kwargs)
        pixels: Any = options.pop("pixel_values", None) if not args else args[0]
        sizes: Any = options.pop("grid_thw", None)
        covered = len(args) <= 1 and _covers(tower, pixels, sizes, options)
        covered = covered and not torch.is_autocast_enabled(pixels.device.type)
        if not covered or torch.is_grad_enabled() or tower.training:
            return original(*args, **kwargs)
        weights, hooked = inspect()
        if hooked:
            return original(*args, **kwargs)
        output = None if graphs is None else graphs.replay(pixels, sizes, options, weights)
        if output is not None:
            return output
        if sizes is None:
            return original(*args, **kwargs)
        told, attention = told_sizes(tower, sizes)
        with attention:
            return original(pixels, **options, **told)

    forward.graphed = True  # type: ignore[attr-defined]
    return forward


def _covers(tower: Any, pixels: Any, sizes: Any, options: dict[str, Any]) -> bool:
    """Whether a graph can stand for a call of the tower with these arguments."""
    if not isinstance(pixels, Tensor) or not pixels.numel():
        return False
    if tower.config.model_type in PATCH_TOWERS:
        # flash attention wants the lengths on the device; eager attention would hold all weights of an image's patches
        fits = isinstance(sizes, Tensor) and pixels.ndim == 2
        fits = fits and tower.config._attn_implementation == "sdpa"
    else:
        fits = sizes is None and pixels.ndim == 4 and len(pixels) <= MAX_IMAGES
    return fits and all(value is None or isinstance(value, (bool, int, str)) for value in options.values())


def _copy_tensors(output: Any) -> Any:
    """The same output with copies of its tensors, made all at once: a tower may return the states of all its layers."""
    leaves, structure = tree_flatten(output)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    copies = [torch.empty_like(tensor) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, tensors)
    remaining = iter(copies)
    return tree_unflatten([next(remaining) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)

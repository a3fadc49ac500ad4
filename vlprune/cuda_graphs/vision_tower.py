"""A vision tower as CUDA graphs, one for each shape of its pixels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from vlprune.cuda_graphs.capture import Capture, inspect
from vlprune.models.llava import TOWERS

#: More images than these fill the GPU, so that launches are no longer what takes the time.
IMAGES = 8
SHAPES = 4


def towers(model: Any) -> list[Any]:
    """The model's CLIP and SigLIP towers; others read sizes on the host, which a graph cannot."""
    children = model.base_model.children() if hasattr(model, "base_model") else []
    return [child for child in children if getattr(getattr(child, "config", None), "model_type", None) in TOWERS]


def tower_forward(
    tower: Any, plain: Callable[..., Any], capture: Callable[[], Capture | None], failed: Callable[[Exception], None]
) -> Callable[..., Any]:
    """A forward that replays; what it returns is a copy, for the next replay overwrites what the graph returns."""
    graphs: OrderedDict[Hashable, tuple[Tensor, Callable[[], Any]]] = OrderedDict()
    weights: Hashable = None

    def forward(*args: Any, **kwargs: Any) -> Any:
        nonlocal weights
        way, options = capture(), dict(kwargs)
        pixels: Any = options.pop("pixel_values", None) if not args else args[0]
        fits = way is not None and len(args) <= 1 and isinstance(pixels, Tensor) and pixels.ndim == 4
        fits = fits and 0 < len(pixels) <= IMAGES
        fits = fits and all(value is None or isinstance(value, (bool, int, str)) for value in options.values())
        if way is None or not fits or torch.is_grad_enabled() or tower.training:
            return plain(*args, **kwargs)
        stamp, hooked = inspect(tower)
        if hooked:
            return plain(*args, **kwargs)
        with torch.inference_mode(False), torch.no_grad():  # what is captured outlives an inference mode
            if weights != stamp:
                graphs.clear()
                weights = stamp
            key = (pixels.shape, pixels.dtype, tuple(sorted(options.items())))
            if key not in graphs:
                held = pixels.clone()
                while len(graphs) >= SHAPES:
                    graphs.popitem(last=False)
                try:
                    graphs[key] = held, way(lambda: plain(held, **options))
                except RuntimeError as error:
                    failed(error)
                    return plain(*args, **kwargs)
            graphs.move_to_end(key)
            held, run = graphs[key]
            held.copy_(pixels)
            return _copied(run())

    return forward


def _copied(output: Any) -> Any:
    """The same with copies of its tensors, made all at once: a tower may return the states of all its layers."""
    leaves, structure = tree_flatten(output)
    tensors = [leaf for leaf in leaves if isinstance(leaf, Tensor)]
    copies = [torch.empty_like(tensor) for tensor in tensors]
    if copies:
        torch._foreach_copy_(copies, tensors)
    left = iter(copies)
    return tree_unflatten([next(left) if isinstance(leaf, Tensor) else leaf for leaf in leaves], structure)

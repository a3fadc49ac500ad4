"""A model's vision tower as CUDA graphs, whatever its LLM runs as."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch

from vlprune.cuda_graphs.capture import Capture, Capturing, call_function, many_compilations
from vlprune.cuda_graphs.fused_encoder import encoder_forwards
from vlprune.cuda_graphs.fused_patches import patch_tower_forwards
from vlprune.cuda_graphs.fused_tower import FusedForward, FusedTower
from vlprune.cuda_graphs.vision_tower import PATCH_TOWERS, find_towers, is_graphed, tower_forward, tower_layers
from vlprune.pruning.feature_cache import tower_settings
from vlprune.pruning.patched_attributes import Patches


class GraphedTowers:
    """Makes the model's towers run as CUDA graphs, until `close()`: the kernels are the same, launched at once.

    A shape of pixels is captured when it comes for the `seen`-th time. What graphs do not cover runs as before. With
    `fused=True` their parts run in fewer kernels, where there are such, for any number of images; other layers are
    compiled, with a compiler (a backend of `torch.compile`). A tower that another model has made run so is left as it
    is: the two may be closed in any order.
    """

    def __init__(
        self, model: Any, capturing: Capturing, seen: int = 1, *, fused: bool = False, compiler: str | None = None
    ) -> None:
        towers = find_towers(model)
        if any(tower_settings(towers)):
            raise RuntimeError("model has a CheaperTower, which runs without graphs: close that first.")
        self._patches = Patches()
        try:
            for tower in (one for one in towers if not is_graphed(one)):
                forward, layers = tower.forward, tower_layers(tower)
                forwards = fused_forwards(tower, layers) if fused else []
                if forwards:
                    forward = self._fuse_parts(forward, forwards)
                elif compiler is not None:
                    forward = self._compile_layers(forward, layers, compiler)
                self._patches.add(tower, "forward", tower_forward(tower, forward, capturing, seen))
        except BaseException:  # Ctrl-C, too
            self.close()
            raise

    def _fuse_parts(self, original: Callable[..., Any], forwards: list[FusedForward]) -> Callable[..., Any]:
        """Fuse what the tower's parts do, and return the forward to call it by."""
        fused = FusedTower(forwards)
        for one in forwards:
            self._patches.add(one.part, "forward", one)

        def forward(*args: Any, **kwargs: Any) -> Any:
            fused.refresh()
            return original(*args, **kwargs)

        return forward

    def _compile_layers(self, original: Callable[..., Any], layers: list[Any], compiler: str) -> Callable[..., Any]:
        """Compile the tower's layers, and return the forward to call it by."""
        compiled_call = torch.compile(call_function, backend=compiler)
        for layer in layers:
            self._patches.add(layer, "forward", functools.partial(compiled_call, type(layer).forward, layer))

        def forward(*args: Any, **kwargs: Any) -> Any:
            with many_compilations():  # the decoder's layers count, too
                return original(*args, **kwargs)

        return forward

    def __enter__(self) -> GraphedTowers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Restore the towers, and free the graphs and their memory."""
        self._patches.undo()


def fused_forwards(tower: Any, layers: list[Any]) -> list[FusedForward]:
    """Forwards for a tower's parts that run in fewer kernels; none where they would not compute the same."""
    if tower.config.model_type in PATCH_TOWERS:
        return patch_tower_forwards(tower)
    return encoder_forwards(tower, layers)


def graph_towers(model: Any, capture: Capture | None = None) -> GraphedTowers | None:
    """The towers of a model on one GPU as graphs, each shape from its second call on; None where they cannot run so.

    Nobody asked for it in particular: where it cannot be done, towers run as they do, and a warning comes only if
    capturing fails. `capture` takes the place of CUDA's own, on any device.
    """
    if capture is None and model.device.type != "cuda":
        return None
    if _is_changed(model):
        return None

    def warn(reason: str) -> None:
        warnings.warn(f"vlprune: the vision tower runs without CUDA graphs: {reason}.", stacklevel=2)

    return GraphedTowers(model, Capturing(model, capture, warn), seen=2)


def tell_towers(model: Any, patches: Patches) -> None:
    """Tell towers of patches what they would work out from the images' sizes; nothing runs as a graph.

    The same bits, by fewer launches: they attend in groups (`vision_tower.told_sizes`). Changes go to `patches`.
    """
    for tower in [] if _is_changed(model) else find_towers(model):
        if tower.config.model_type in PATCH_TOWERS:
            patches.add(tower, "forward", tower_forward(tower, tower.forward, None))


def _is_changed(model: Any) -> bool:
    """Whether its towers have been made cheaper, or run as graphs already."""
    towers = find_towers(model)
    return any(tower_settings(towers)) or any(map(is_graphed, towers))

"""A model's vision tower and a pruner's text tower as CUDA graphs, whatever its LLM runs as."""

from __future__ import annotations

import functools
import types
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vlprune.cuda_graphs.capture import Capture, Capturing, call_function, many_compilations
from vlprune.cuda_graphs.text_tower import TextTowerGraphs
from vlprune.cuda_graphs.vision_tower import find_towers, tower_forward, tower_layers
from vlprune.pruning.feature_cache import tower_settings
from vlprune.pruning.patched_attributes import Patches


class GraphedTowers:
    """Makes the model's towers run as CUDA graphs, until `close()`: the kernels are the same, launched at once.

    A shape of pixels is captured when it comes for the `seen`-th time. What graphs do not cover runs as before. With a
    compiler (a backend of `torch.compile`) the vision tower's layers are compiled, for any number of images.
    """

    def __init__(self, model: Any, capturing: Capturing, seen: int = 1, compiler: str | None = None) -> None:
        towers = find_towers(model)
        if any(tower_settings(towers)):
            raise RuntimeError("model has a CheaperTower, which runs without graphs: close that first.")
        #: Embeds the questions of a pruner's dual encoder.
        self.text_tower = TextTowerGraphs(model, capturing)
        self._patches = Patches()
        for tower in towers:
            forward = tower.forward if compiler is None else self._compile_layers(tower, compiler)
            self._patches.add(tower, "forward", tower_forward(tower, forward, capturing, seen))

    def _compile_layers(self, tower: Any, compiler: str) -> Callable[..., Any]:
        """Compile the tower's layers, and return the forward to call it by."""
        compiled_call, original = torch.compile(call_function, backend=compiler), tower.forward
        for layer in tower_layers(tower):
            self._patches.add(layer, "forward", functools.partial(compiled_call, type(layer).forward, layer))
            if _has_gelu_mlp(tower, layer):
                self._patches.add(layer.mlp, "forward", types.MethodType(gelu_mlp, layer.mlp))

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
        self.text_tower.clear()


def gelu_mlp(mlp: Any, states: Tensor) -> Tensor:
    """`mlp.fc2(gelu(mlp.fc1(states)))`; on a GPU the GELU, by tanh, is part of the product's own kernel.

    A compiler that leaves products to a library gives it a kernel of its own, which reads and writes all states again.
    """
    if mlp.fc1._forward_hooks or mlp.fc1._forward_pre_hooks:  # which are to see its own input and output
        return type(mlp).forward(mlp, states)
    flat = states.reshape(-1, states.shape[-1])
    hidden = torch._addmm_activation(mlp.fc1.bias, flat, mlp.fc1.weight.t(), use_gelu=True)
    return mlp.fc2(hidden).view(states.shape)


def _has_gelu_mlp(tower: Any, layer: Any) -> bool:
    """Whether `gelu_mlp` stands for the layer's MLP, as in SigLIP."""
    mlp = getattr(layer, "mlp", None)
    linear = [getattr(mlp, name, None) for name in ("fc1", "fc2")]
    return (
        getattr(tower.config, "hidden_act", None) == "gelu_pytorch_tanh"
        and all(type(one) is torch.nn.Linear and one.bias is not None for one in linear)
        and linear[0].weight.device.type == "cuda"  # type: ignore[union-attr]
    )


def graph_towers(model: Any, capture: Capture | None = None) -> GraphedTowers | None:
    """The towers of a model on one GPU as graphs, each shape from its second call on; None where they cannot run so.

    Nobody asked for it in particular: where it cannot be done, towers run as they do, and a warning comes only if
    capturing fails. `capture` takes the place of CUDA's own, on any device.
    """
    if capture is None and model.device.type != "cuda":
        return None
    towers = find_towers(model)
    if any(tower_settings(towers)) or any(hasattr(tower.__dict__.get("forward"), "graphed") for tower in towers):
        return None

    def warn(reason: str) -> None:
        warnings.warn(f"vlprune: the vision tower runs without CUDA graphs: {reason}.", stacklevel=2)

    return GraphedTowers(model, Capturing(model, capture, warn), seen=2)

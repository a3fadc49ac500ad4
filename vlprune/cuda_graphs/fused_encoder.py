"""The layers of a vision tower, as in SigLIP and CLIP, in fewer kernels.

Each layer norm is one kernel, and so is adding up what comes before the second one; queries, keys and values are one
matrix product; a GELU, and what the MLP is added to, are part of its products.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlprune.cuda_graphs.capture import ModuleInspector
from vlprune.cuda_graphs.fused_attention import has_kernels
from vlprune.cuda_graphs.fused_linear import FusedLinear, can_fuse_linear

#: Layer classes of transformers that are plain: x + attention(norm(x)), then x + fc2(activation(fc1(norm(x)))).
LAYER_CLASSES = ("SiglipEncoderLayer", "CLIPEncoderLayer")
#: The MLP's columns are filled up to a multiple of this: on an H200 4,352 take less time than SigLIP's 4,304.
TILE = 128


class FusedEncoder:
    """The layers of a tower as they are now: `forwards` are their forwards, to be put on them.

    Weights are moved (see `FusedLinear`). `refresh` is to be called before the layers are.
    """

    def __init__(self, layers: list[Any]) -> None:
        self._inspect = ModuleInspector(nn.ModuleList(layers))
        self._addresses: Hashable = None
        self._fused = False
        self.forwards = [FusedEncoderLayer(layer) for layer in layers]
        self.refresh()

    def refresh(self) -> None:
        """See whether weights or hooks have changed."""
        addresses, hooked = self._inspect()
        if not hooked and addresses != self._addresses:
            self._fused = all(can_fuse_layer(one.layer) for one in self.forwards)
            for one in self.forwards if self._fused else ():
                one.fuse_weights()
            self._addresses, _ = self._inspect()
        for one in self.forwards:
            one.in_use = self._fused and not hooked


class FusedEncoderLayer:
    """Does what the layer's own forward does, which it calls with a mask, for training, and while not `in_use`."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.in_use = False

    def fuse_weights(self) -> None:
        """Let products that read the same input be one, and fill up the MLP's."""
        attention, fc1 = self.layer.self_attn, self.layer.mlp.fc1
        self._qkv_proj = FusedLinear([attention.q_proj, attention.k_proj, attention.v_proj])
        self._fc1_weight, self._fc1_bias = (_fill_up(weight, -fc1.out_features % TILE) for weight in fc1.parameters())

    def __call__(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Tensor:
        layer, plain = self.layer, torch.is_grad_enabled() or torch.is_autocast_enabled(hidden_states.device.type)
        if not self.in_use or plain or layer.training or attention_mask is not None:
            out: Tensor = type(layer).forward(layer, hidden_states, attention_mask, **options)
            return out
        attention, mlp, first, second = layer.self_attn, layer.mlp, layer.layer_norm1, layer.layer_norm2
        states = add_layer_norm(hidden_states, None, first.weight, first.bias, first.eps, None)[1]
        query, key, value = self._qkv_proj(states).unflatten(-1, (3, attention.num_heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(query, key, value, scale=attention.scale)
        attended = attention.out_proj(attended.transpose(1, 2).flatten(2))
        total, states = add_layer_norm(hidden_states, attended, second.weight, second.bias, second.eps, mlp.fc2.bias)
        inside = self._activated(states.flatten(0, 1), mlp.activation_fn)[:, : mlp.fc1.out_features]
        return total.flatten(0, 1).addmm_(inside, mlp.fc2.weight.t()).view(total.shape)

    def _activated(self, states: Tensor, activation: Any) -> Tensor:
        """activation(fc1(states)), and behind it what comes of the columns that were filled up."""
        if is_tanh_gelu(activation) and states.device.type == "cuda":  # elsewhere this takes GELU's other formula
            return torch._addmm_activation(self._fc1_bias, states, self._fc1_weight.t(), use_gelu=True)
        inside: Tensor = activation(F.linear(states, self._fc1_weight, self._fc1_bias))
        return inside


def can_fuse_encoder(tower: Any, layers: list[Any]) -> bool:
    """Whether `FusedEncoder` computes the same as these layers of the tower."""
    sdpa = getattr(tower.config, "_attn_implementation", None) == "sdpa"
    return sdpa and bool(layers) and all("forward" not in one.__dict__ and can_fuse_layer(one) for one in layers)


def can_fuse_layer(layer: Any) -> bool:
    """Whether `FusedEncoderLayer` computes the same as this layer."""
    if type(layer).__name__ not in LAYER_CLASSES:
        return False
    attention, mlp = layer.self_attn, layer.mlp
    norms, biased = (layer.layer_norm1, layer.layer_norm2), (attention.out_proj, mlp.fc1, mlp.fc2)
    return (
        not any("forward" in part.__dict__ for part in layer.modules() if part is not layer)
        and can_fuse_linear([attention.q_proj, attention.k_proj, attention.v_proj])
        and all(can_fuse_linear([one]) and one.bias is not None for one in biased)
        and all(type(one) is nn.LayerNorm and one.bias is not None for one in norms)
        and len({weight.dtype for weight in layer.parameters()}) == 1
        and has_kernels(mlp.fc1.weight)
    )


def is_tanh_gelu(activation: Any) -> bool:
    """Whether this activation function of transformers is GELU by its formula with tanh."""
    return type(activation).__name__ == "GELUTanh" and not getattr(activation, "use_gelu_tanh_python", False)


def add_layer_norm(
    x: Tensor, y: Tensor | None, weight: Tensor, bias: Tensor, eps: float, more: Tensor | None
) -> tuple[Tensor, Tensor]:
    """x + y + more, and the layer norm of x + y, for x and y (..., d) and more (d); without y and more, x and its norm.

    >>> x, y, weight, bias = torch.tensor([[1.0, 2.0], [0.0, 2.0], [1.0, 2.0], [0.0, 0.0]])
    >>> add_layer_norm(x, y, weight, bias, 0.0, torch.ones(2))
    (tensor([2., 5.]), tensor([-1.,  2.]))
    """
    if x.device.type == "cuda":
        from vlprune.cuda_graphs.kernels import launch_add_layer_norm

        return launch_add_layer_norm(x, y, weight, bias, eps, more)
    x = x if y is None else x + y
    return x if more is None else x + more, F.layer_norm(x, weight.shape, weight, bias, eps)


@torch.no_grad()
def _fill_up(weight: Tensor, rows: int) -> Tensor:
    """The weight with so many rows of zeros behind it; it is a view of that from now on, if it was not yet."""
    if not rows:
        return weight.data
    shape = (len(weight) + rows, *weight.shape[1:])
    fits = weight.untyped_storage().nbytes() == shape[0] * weight[0].nbytes and weight.storage_offset() == 0
    if not fits or not weight.is_contiguous():
        weight.data = torch.cat([weight.data, weight.data.new_zeros(rows, *shape[1:])])[: len(weight)]
    return weight.data.as_strided(shape, weight.stride())

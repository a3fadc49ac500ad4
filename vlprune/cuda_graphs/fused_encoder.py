"""The layers of a vision tower, as in SigLIP and CLIP, in fewer kernels.

Each layer norm is one kernel, and so is adding up what comes before the second one; queries, keys and values are one
matrix product; a GELU, and what the MLP is added to, are part of its products.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlprune.cuda_graphs.fused_attention import has_kernels
from vlprune.cuda_graphs.fused_linear import FusedLinear, can_fuse_linear, fill_up_rows
from vlprune.cuda_graphs.fused_tower import TILE, FusedForward

#: Layer classes of transformers that are plain: x + attention(norm(x)), then x + fc2(activation(fc1(norm(x)))).
LAYER_CLASSES = ("SiglipEncoderLayer", "CLIPEncoderLayer")


class FusedEncoderLayer(FusedForward):
    """A layer, as long as there is no mask."""

    def can_fuse(self) -> bool:
        return can_fuse_layer(self.part)

    def fuse_weights(self) -> None:
        """Let products that read the same input be one, and fill up the MLP's."""
        attention, fc1 = self.part.self_attn, self.part.mlp.fc1
        self._qkv_proj = FusedLinear([attention.q_proj, attention.k_proj, attention.v_proj])
        more = -fc1.out_features % TILE
        self._fc1_weight, self._fc1_bias = fill_up_rows([fc1.weight], more), fill_up_rows([fc1.bias], more)

    def fused(self, hidden_states: Tensor, attention_mask: Tensor | None = None, **options: Any) -> Tensor:
        layer = self.part
        if attention_mask is not None:
            return self.plain(hidden_states, attention_mask, **options)
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


def encoder_forwards(tower: Any, layers: list[Any]) -> list[FusedForward]:
    """Forwards for these layers of the tower; none where one of them cannot be fused."""
    sdpa = getattr(tower.config, "_attn_implementation", None) == "sdpa"
    fits = sdpa and all("forward" not in one.__dict__ and can_fuse_layer(one) for one in layers)
    return [FusedEncoderLayer(one) for one in layers] if fits else []


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

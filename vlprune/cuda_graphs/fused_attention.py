"""Attention of a short prompt in one kernel: positions, cache and causal attention, straight from the projections.

For 128 tokens the launches of separate kernels, and their passes over the same few megabytes, take longer than that.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Attention classes of transformers that are plain: rotated queries and keys, causal, no norm and no window.
PLAIN = ("LlamaAttention", "Qwen2Attention")
#: Longer prompts are better off with the library's kernel: ours turns keys anew for every block of queries.
LONGEST = 512


class Attention(nn.Module):
    """Stands in for a plain attention while a prompt without padding is read into empty slots."""

    def __init__(self, plain: Any, product: nn.Module) -> None:
        super().__init__()
        self.product, self.o_proj = product, plain.o_proj
        self.layer_idx, self.scaling = plain.layer_idx, plain.scaling

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], past_key_values: Any, **_: Any
    ) -> tuple[Tensor, None]:
        slots = getattr(past_key_values, "layers", [past_key_values])[self.layer_idx]
        out = attend(self.product(hidden_states), *position_embeddings, slots.keys, slots.values, self.scaling)
        return self.o_proj(out), None


def usable(attention: Any, weight: Tensor) -> bool:
    """Whether `Attention` can stand in for it."""
    if type(attention).__name__ not in PLAIN or getattr(attention, "sliding_window", None) is not None:
        return False
    return has_kernels(weight) and (weight.device.type == "cpu" or attention.head_dim in (64, 128))


def has_kernels(weight: Tensor) -> bool:
    """Whether there are kernels for weights of this kind, or, on a CPU, what they do in torch."""
    if weight.device.type != "cuda":
        return weight.device.type == "cpu"
    return (
        weight.dtype in (torch.bfloat16, torch.float16)
        and torch.cuda.get_device_capability(weight.device) >= (8, 0)
        and importlib.util.find_spec("triton") is not None
    )


@torch.library.custom_op("vlprune::attend", mutates_args={"keys", "values"})
def attend(product: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Causal attention of `product` (B, n, heads and twice the key heads times d): queries, keys and values.

    `cos` and `sin` (B or 1, n, d) rotate queries and keys; `keys` and `values` (B, key heads, slots, d) get the rotated
    keys and the values in their first n slots. Returns (B, n, heads times d).
    """
    if product.device.type == "cuda":
        from vlprune.cuda_graphs.kernels import launch

        return launch(product, cos, sin, keys, values, scale)
    (_, few, _, d), n = keys.shape, product.shape[1]
    query, key, value = (
        product.unflatten(2, (-1, d)).transpose(1, 2).split((product.shape[2] // d - 2 * few, few, few), 1)
    )
    query, key = (part * cos[:, None] + _rotated(part) * sin[:, None] for part in (query, key))
    keys[:, :, :n].copy_(key)
    values[:, :, :n].copy_(value)
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
    return out.transpose(1, 2).flatten(2)


@attend.register_fake
def _(product: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    return product.new_empty(*product.shape[:2], product.shape[2] - 2 * keys.shape[1] * keys.shape[3])


def _rotated(x: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)

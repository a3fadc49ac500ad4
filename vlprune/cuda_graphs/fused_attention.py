"""Attention of a short prompt as one kernel: rotary positions, writes to the KV cache, and causal attention.

For 128 tokens the launches of separate kernels, and their passes over the same few megabytes, take longer than that.
"""

from __future__ import annotations

import importlib.util
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

#: Attention classes of transformers that are plain: rotated queries and keys, causal, no norm and no window.
ATTENTION_CLASSES = ("LlamaAttention", "Qwen2Attention")
#: Longer prompts are faster with the library's kernel: ours rotates the keys anew for every block of queries.
MAX_PROMPT = 512


class FusedAttention(nn.Module):
    """Replaces a plain attention module while a prompt without padding is read into an empty cache."""

    def __init__(self, attention: Any, qkv_proj: nn.Module) -> None:
        super().__init__()
        self.qkv_proj, self.o_proj = qkv_proj, attention.o_proj
        self.layer_idx, self.scaling = attention.layer_idx, attention.scaling

    def forward(
        self, hidden_states: Tensor, position_embeddings: tuple[Tensor, Tensor], past_key_values: Any, **_: Any
    ) -> tuple[Tensor, None]:
        cache = getattr(past_key_values, "layers", [past_key_values])[self.layer_idx]
        out = fused_attention(
            self.qkv_proj(hidden_states), *position_embeddings, cache.keys, cache.values, self.scaling
        )
        return self.o_proj(out), None


def can_fuse_attention(attention: Any, weight: Tensor) -> bool:
    """Whether `FusedAttention` computes the same as this module; `weight` is its projections' weight."""
    if type(attention).__name__ not in ATTENTION_CLASSES or getattr(attention, "sliding_window", None) is not None:
        return False
    return has_kernels(weight) and (weight.device.type == "cpu" or attention.head_dim in (64, 128))


def has_kernels(weight: Tensor) -> bool:
    """Whether there are kernels for weights of this dtype and device; on a CPU torch stands in for them."""
    if weight.device.type != "cuda":
        return weight.device.type == "cpu"
    return (
        weight.dtype in (torch.bfloat16, torch.float16)
        and torch.cuda.get_device_capability(weight.device) >= (8, 0)
        and importlib.util.find_spec("triton") is not None
    )


@torch.library.custom_op("vlprune::fused_attention", mutates_args={"keys", "values"})
def fused_attention(qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Causal attention of queries, keys and values that lie side by side, with rotary positions; fills the KV cache.

    `qkv` is (B, n, (heads + 2 key heads) d). `cos` and `sin` (B or 1, n, d) rotate queries and keys. The cache, `keys`
    and `values` (B, key heads, slots, d), gets the rotated keys and the values in its first n slots. Returns
    (B, n, heads d).
    """
    if qkv.device.type == "cuda":
        from vlprune.cuda_graphs.kernels import launch_attention

        return launch_attention(qkv, cos, sin, keys, values, scale)
    (_, key_heads, _, d), n = keys.shape, qkv.shape[1]
    heads = qkv.shape[2] // d - 2 * key_heads
    query, key, value = qkv.unflatten(2, (-1, d)).transpose(1, 2).split((heads, key_heads, key_heads), 1)
    query, key = (part * cos[:, None] + rotate_half(part) * sin[:, None] for part in (query, key))
    keys[:, :, :n].copy_(key)
    values[:, :, :n].copy_(value)
    out = F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
    return out.transpose(1, 2).flatten(2)


@fused_attention.register_fake
def _(qkv: Tensor, cos: Tensor, sin: Tensor, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    return qkv.new_empty(*qkv.shape[:2], qkv.shape[2] - 2 * keys.shape[1] * keys.shape[3])


def rotate_half(x: Tensor) -> Tensor:
    """(-b, a) for vectors whose halves are (a, b)."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat([-second, first], dim=-1)

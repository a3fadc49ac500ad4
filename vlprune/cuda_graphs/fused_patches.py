"""Parts of Qwen-VL's vision towers in fewer kernels, or in faster ones.

Patches are embedded by a matrix product instead of a convolution; queries and keys are rotated by one kernel; the gated
MLP is two products, whose columns are filled up.
"""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from vlprune.cuda_graphs.fused_attention import has_kernels, rotate_half
from vlprune.cuda_graphs.fused_linear import can_fuse_linear, fill_up_columns, fill_up_rows
from vlprune.cuda_graphs.fused_norm_mlp import NORM_CLASSES, gated_silu, is_silu, rms_norm
from vlprune.cuda_graphs.fused_tower import TILE, FusedForward
from vlprune.cuda_graphs.grouped_attention import NAME, attend_grouped

#: Attention classes of transformers that are plain: rotated queries and keys, within sequences.
ATTENTION_CLASSES = ("VisionAttention", "Qwen2_5_VLVisionAttention", "Qwen3VLVisionAttention")
#: MLP classes of transformers that are plain: down(silu(gate(x)) * up(x)), each with a bias.
MLP_CLASSES = ("Qwen2_5_VLMLP",)


class FusedPatchEmbedding(FusedForward):
    """A convolution whose strides are as long as its kernel, on patches that have been cut out: a matrix product."""

    def can_fuse(self) -> bool:
        conv = getattr(self.part, "proj", None)
        return (
            type(conv) is nn.Conv3d
            and "forward" not in conv.__dict__
            and conv.stride == conv.kernel_size
            and (conv.padding, conv.dilation, conv.groups) == ((0, 0, 0), (1, 1, 1), 1)
            and conv.weight.is_contiguous()
            and has_kernels(conv.weight)
        )

    def fused(self, patches: Tensor) -> Tensor:
        conv = self.part.proj
        return F.linear(patches.to(conv.weight.dtype), conv.weight.flatten(1), conv.bias)


class FusedPatchAttention(FusedForward):
    """Attention within sequences of patches, told where they end as `grouped_attention` wants it."""

    def can_fuse(self) -> bool:
        attention = self.part
        return (
            type(attention).__name__ in ATTENTION_CLASSES
            and all(can_fuse_linear([one]) for one in (attention.qkv, attention.proj))
            and has_kernels(attention.qkv.weight)
        )

    def fused(self, hidden_states: Tensor, cu_seqlens: Tensor, position_embeddings: Any, **options: Any) -> Tensor:
        attention = self.part
        if attention.config._attn_implementation != NAME:
            return self.plain(hidden_states, cu_seqlens, position_embeddings, **options)
        qkv = rotate_queries_and_keys(attention.qkv(hidden_states), *position_embeddings)
        query, key, value = qkv.unflatten(1, (3, attention.num_heads, -1)).permute(1, 2, 0, 3).unsqueeze(1)
        out, _ = attend_grouped(attention, query, key, value, None, cu_seq_lens_q=cu_seqlens, scaling=attention.scaling)
        attended: Tensor = attention.proj(out.reshape(len(hidden_states), -1))
        return attended


class FusedGatedMLP(FusedForward):
    """Gate and up as one product; columns of it, and of the second one, are filled up."""

    def can_fuse(self) -> bool:
        mlp = self.part
        return (
            type(mlp).__name__ in MLP_CLASSES
            and is_silu(mlp.act_fn)
            and can_fuse_linear([mlp.gate_proj, mlp.up_proj])
            and can_fuse_linear([mlp.down_proj])
            and mlp.gate_proj.bias is not None
            and has_kernels(mlp.gate_proj.weight)
        )

    def fuse_weights(self) -> None:
        gate, up, down = self.part.gate_proj, self.part.up_proj, self.part.down_proj
        more = -gate.out_features % TILE
        self._gate_up_weight = fill_up_rows([gate.weight, up.weight], more)
        self._gate_up_bias = fill_up_rows([gate.bias, up.bias], more)
        self._down_weight = fill_up_columns(down.weight, more)

    def fused(self, hidden_state: Tensor) -> Tensor:
        inside = gated_silu(F.linear(hidden_state, self._gate_up_weight, self._gate_up_bias))
        return F.linear(inside, self._down_weight, self.part.down_proj.bias)


class FusedRMSNorm(FusedForward):
    """A plain RMS norm."""

    def can_fuse(self) -> bool:
        return has_kernels(self.part.weight)

    def fused(self, hidden_states: Tensor) -> Tensor:
        return rms_norm(hidden_states, self.part.weight, float(self.part.variance_epsilon))


def patch_tower_forwards(tower: Any) -> list[FusedForward]:
    """Forwards for the parts of a Qwen-VL's tower; none where one of them cannot be fused."""
    if getattr(tower.config, "_attn_implementation", None) != "sdpa":
        return []
    forwards: list[FusedForward] = [FusedPatchEmbedding(tower.patch_embed)]
    for block in tower.blocks:
        forwards.append(FusedPatchAttention(block.attn))
        if type(block.mlp).__name__ in MLP_CLASSES:
            forwards.append(FusedGatedMLP(block.mlp))
        forwards += [FusedRMSNorm(one) for one in (block.norm1, block.norm2) if type(one).__name__ in NORM_CLASSES]
    changed = any("forward" in one.part.__dict__ for one in forwards)
    return [] if changed or not all(one.can_fuse() for one in forwards) else forwards


def rotate_queries_and_keys(qkv: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Queries, keys and values that lie side by side, (n, 3 heads d), the first two rotated by cos and sin (n, d).

    In float32, rounded once. The product is overwritten.

    >>> import torch
    >>> rotate_queries_and_keys(torch.tensor([[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]]), torch.zeros(1, 2), torch.ones(1, 2))
    tensor([[-2.,  1., -4.,  3.,  5.,  6.]])
    """
    if qkv.device.type == "cuda":
        from vlprune.cuda_graphs.kernels import launch_rotate

        return launch_rotate(qkv, cos, sin)
    turned = qkv[:, : qkv.shape[1] // 3 * 2].unflatten(1, (-1, cos.shape[1]))
    wide, cos, sin = turned.float(), cos[:, None].float(), sin[:, None].float()
    turned.copy_(wide * cos + rotate_half(wide) * sin)
    return qkv

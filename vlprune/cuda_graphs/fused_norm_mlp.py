"""RMS norm and the MLP's gated activation as one kernel each.

transformers launches one kernel for each operation in them, each over all tokens. Compiled layers need neither.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlprune.cuda_graphs.fused_attention import has_kernels

#: Norm classes of transformers that are plain: x over its root mean square, times weight.
NORM_CLASSES = ("LlamaRMSNorm", "Qwen2RMSNorm", "Qwen2_5_VLRMSNorm", "Qwen3VLTextRMSNorm")
#: MLP classes of transformers that are plain: down(silu(gate(x)) * up(x)).
MLP_CLASSES = ("LlamaMLP", "Qwen2MLP", "Qwen3VLTextMLP")


class FusedNorm(nn.Module):
    """Replaces a plain RMS norm."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.weight, self.eps = norm.weight, float(norm.variance_epsilon)

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class FusedMLP(nn.Module):
    """Replaces a plain MLP whose gate and up projections are one matrix product."""

    def __init__(self, mlp: Any, gate_up_proj: nn.Module) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = gate_up_proj, mlp.down_proj

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(gated_silu(self.gate_up_proj(x)))
        return out


def can_fuse_norm(module: Any) -> bool:
    """Whether `FusedNorm` computes the same as this module."""
    return type(module).__name__ in NORM_CLASSES and "forward" not in module.__dict__ and has_kernels(module.weight)


def can_fuse_mlp(module: Any, weight: Tensor) -> bool:
    """Whether `FusedMLP` computes the same as this module; `weight` is that of its gate and up projections."""
    plain = type(module).__name__ in MLP_CLASSES and is_silu(getattr(module, "act_fn", None))
    return plain and "forward" not in module.__dict__ and has_kernels(weight)


def is_silu(activation: Any) -> bool:
    """Whether this activation function of torch or transformers is SiLU."""
    return type(activation).__name__ in ("SiLU", "SiLUActivation")


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x (..., d) over its root mean square, times weight (d), rounded where transformers rounds.

    >>> rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)
    tensor([[0.8485, 2.2627]])
    """
    if x.device.type == "cuda":
        from vlprune.cuda_graphs.kernels import launch_rms_norm

        return launch_rms_norm(x, weight, eps)
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def gated_silu(gate_up: Tensor) -> Tensor:
    """silu(gate) * up, for gate and up side by side in (..., 2 w), rounded where transformers rounds.

    >>> gated_silu(torch.tensor([[1.0, 10.0]]))
    tensor([[7.3106]])
    """
    if gate_up.device.type == "cuda":
        from vlprune.cuda_graphs.kernels import launch_gated_silu

        return launch_gated_silu(gate_up)
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up

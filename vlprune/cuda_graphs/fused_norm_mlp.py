"""What lies between a decoder's matrix products: a norm, and a gated activation, as one kernel each.

transformers launches one for each operation in them, each over all tokens. Compiled layers need neither.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlprune.cuda_graphs.fused_attention import has_kernels

#: Classes of transformers that are plain: weight times x by its root mean square; down(silu(gate(x)) * up(x)).
NORMS = ("LlamaRMSNorm", "Qwen2RMSNorm", "Qwen2_5_VLRMSNorm", "Qwen3VLTextRMSNorm")
MLPS = ("LlamaMLP", "Qwen2MLP", "Qwen3VLTextMLP")


class Norm(nn.Module):
    """Stands in for a plain norm."""

    def __init__(self, plain: Any) -> None:
        super().__init__()
        self.weight, self.eps = plain.weight, float(plain.variance_epsilon)

    def forward(self, x: Tensor) -> Tensor:
        return normed(x, self.weight, self.eps)


class Gated(nn.Module):
    """Stands in for a plain MLP whose gate and up are one product."""

    def __init__(self, plain: Any, product: nn.Module) -> None:
        super().__init__()
        self.product, self.down_proj = product, plain.down_proj

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down_proj(gated(self.product(x)))
        return out


def plain_norm(module: Any) -> bool:
    """Whether `Norm` can stand in for it."""
    return type(module).__name__ in NORMS and "forward" not in module.__dict__ and has_kernels(module.weight)


def plain_mlp(module: Any, weight: Tensor) -> bool:
    """Whether `Gated` can stand in for it."""
    silu = type(getattr(module, "act_fn", None)).__name__ in ("SiLU", "SiLUActivation")
    return type(module).__name__ in MLPS and silu and "forward" not in module.__dict__ and has_kernels(weight)


def normed(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x (..., d) by its root mean square, times weight (d), rounded where transformers rounds.

    >>> normed(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.0)
    tensor([[0.8485, 2.2627]])
    """
    if x.device.type == "cuda":
        from vlprune.cuda_graphs.kernels import launch_norm

        return launch_norm(x, weight, eps)
    wide = x.float()
    return weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def gated(product: Tensor) -> Tensor:
    """silu of the first half of product (..., 2 w) times its second half, rounded where transformers rounds.

    >>> gated(torch.tensor([[1.0, 10.0]]))
    tensor([[7.3106]])
    """
    if product.device.type == "cuda":
        from vlprune.cuda_graphs.kernels import launch_gate

        return launch_gate(product)
    gate, up = product.chunk(2, dim=-1)
    return F.silu(gate) * up

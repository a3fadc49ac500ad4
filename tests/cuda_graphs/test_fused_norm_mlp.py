"""Norm and gate as one kernel each, against transformers' own; `test_kernels.py` runs the kernels."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaModel, Qwen2Config, Qwen2Model
from transformers.models.llama.modeling_llama import LlamaMLP, LlamaRMSNorm

from vlprune.cuda_graphs.fused_linear import FusedLinear
from vlprune.cuda_graphs.fused_modules import FusedModules
from vlprune.cuda_graphs.fused_norm_mlp import FusedMLP, FusedNorm, can_fuse_mlp, can_fuse_norm, gated_silu, rms_norm

SHAPES = [(1, 1, 8), (2, 3, 100), (1, 5, 4096), (1, 2, 3584), (2, 2, 3, 128)]


def compare_kernels(dtype, device):
    """The kernels round where transformers rounds, so that in 16 bits nearly all values are the same."""
    from vlprune.cuda_graphs.kernels import launch_gated_silu, launch_rms_norm

    for shape in SHAPES:
        torch.manual_seed(shape[-1])
        x, weight = 5 * torch.randn(shape), torch.randn(shape[-1])
        x, weight = x.to(device, dtype), weight.to(device, dtype)
        module = LlamaRMSNorm(shape[-1]).to(device, dtype)
        module.weight.data = weight
        with torch.no_grad():
            pairs = [(launch_rms_norm(x, weight, 1e-6), module(x))]
        first, second = x.chunk(2, dim=-1)
        pairs.append((launch_gated_silu(x), nn.functional.silu(first) * second))
        pairs.append((launch_rms_norm(x.transpose(0, 1), weight, 1e-6), pairs[0][1].transpose(0, 1)))
        for found, expected in pairs:
            assert found.dtype == dtype
            assert found.shape == expected.shape
            torch.testing.assert_close(found, expected, rtol=1e-5 if dtype == torch.float32 else 1.6e-2, atol=1e-6)
            if dtype != torch.float32:
                assert (found == expected).float().mean() > 0.98


@pytest.mark.parametrize("kind", [(LlamaModel, LlamaConfig), (Qwen2Model, Qwen2Config)], ids=["llama", "qwen2"])
def test_in_a_decoder(kind):
    """In torch, bit for bit: the same operations in the same order."""
    torch.manual_seed(0)
    model, config = kind
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    decoder = model(config(**sizes, num_hidden_layers=2, vocab_size=8)).eval()
    for name, weight in decoder.named_parameters():
        if "norm" in name:
            nn.init.normal_(weight)
    x, fused_modules = torch.randn(2, 7, 32), FusedModules(decoder)
    with torch.no_grad():
        with fused_modules.installed(short_prompt=False, compiled=True):
            expected = decoder(inputs_embeds=x).last_hidden_state
        with fused_modules.installed(short_prompt=False, compiled=False):
            assert sum(isinstance(part, FusedNorm) for part in decoder.modules()) == 5
            assert sum(isinstance(part, FusedMLP) for part in decoder.modules()) == 2
            found = decoder(inputs_embeds=x).last_hidden_state
    assert torch.equal(found, expected)
    assert not any(isinstance(part, (FusedNorm, FusedMLP)) for part in decoder.modules())


def test_what_they_are_for():
    norm, mlp = LlamaRMSNorm(8), LlamaMLP(LlamaConfig(hidden_size=8, num_attention_heads=2, intermediate_size=12))
    assert can_fuse_norm(norm)
    assert can_fuse_mlp(mlp, mlp.gate_proj.weight)
    assert not can_fuse_norm(nn.LayerNorm(8))
    other = LlamaMLP(LlamaConfig(hidden_size=8, num_attention_heads=2, intermediate_size=12, hidden_act="gelu"))
    assert not can_fuse_mlp(other, other.gate_proj.weight)
    assert not can_fuse_mlp(mlp, mlp.gate_proj.weight.to("meta"))
    norm.forward = mlp.forward = lambda x: x
    assert not can_fuse_norm(norm)
    assert not can_fuse_mlp(mlp, mlp.gate_proj.weight)


def test_the_definitions():
    torch.manual_seed(0)
    x, norm, mlp = (
        torch.randn(3, 8),
        LlamaRMSNorm(8),
        LlamaMLP(LlamaConfig(hidden_size=8, num_attention_heads=2, intermediate_size=12)),
    )
    nn.init.normal_(norm.weight)
    assert torch.equal(rms_norm(x, norm.weight, norm.variance_epsilon), norm(x))
    with torch.no_grad():
        torch.testing.assert_close(mlp.down_proj(gated_silu(FusedLinear([mlp.gate_proj, mlp.up_proj])(x))), mlp(x))

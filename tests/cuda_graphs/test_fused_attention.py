"""Attention in one kernel: its definition against transformers' own; `test_kernels.py` runs the kernel."""

import pytest
import torch
from transformers import LlamaConfig, LlamaModel
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaRotaryEmbedding

from tests.support.tape import capture_on_tape
from vlprune.cuda_graphs.capture import CompiledLayers, CudaGraphCapture
from vlprune.cuda_graphs.decoder_graphs import DecoderGraphs
from vlprune.cuda_graphs.fused_attention import FusedAttention, can_fuse_attention, fused_attention
from vlprune.cuda_graphs.fused_linear import FusedLinear
from vlprune.cuda_graphs.fused_modules import FusedModules
from vlprune.cuda_graphs.static_cache import PREFILL, StaticKVCache, write_mode

#: rows, tokens, heads, key heads, width of a head
SHAPES = [(1, 16, 2, 2, 64), (2, 80, 4, 2, 64), (1, 144, 2, 1, 128)]
SLOTS = 160


def made(batch, n, heads, key_heads, d, dtype, device):
    generator = torch.Generator().manual_seed(n)
    qkv = torch.randn(batch, n, (heads + 2 * key_heads) * d, generator=generator).to(device, dtype)
    angle = 3 * torch.randn(batch, n, d // 2, generator=generator).repeat(1, 1, 2)
    return qkv, angle.cos().to(device, dtype), angle.sin().to(device, dtype)


def error(found, expected):
    return ((found.double() - expected).norm() / expected.norm()).item()


def compare_kernel(dtype, device):
    """The kernel against its definition in float64."""
    from vlprune.cuda_graphs.kernels import launch_attention

    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    for batch, n, heads, key_heads, d in SHAPES:
        given = made(batch, n, heads, key_heads, d, dtype, device)
        slots = [torch.full((batch, key_heads, SLOTS, d), 7.0, dtype=dtype, device=device) for _ in range(2)]
        exact = [part.cpu().double() for part in slots]
        out = launch_attention(*given, *slots, d**-0.5)
        expected = fused_attention(*(part.cpu().double() for part in given), *exact, d**-0.5)
        assert error(out.cpu(), expected) < tolerance
        for found, wanted in zip(slots, exact):
            assert error(found.cpu(), wanted) < tolerance
            assert (found[:, :, n:] == 7).all()


def test_the_same_as_transformers():
    """The definition, on a CPU."""
    torch.manual_seed(0)
    config = LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2, attn_implementation="sdpa")
    plain = LlamaAttention(config, 0).double().eval()
    x = torch.randn(2, 9, 64, dtype=torch.float64)
    turned = tuple(part.double() for part in LlamaRotaryEmbedding(config)(x, torch.arange(9)[None]))
    one, other = (StaticKVCache(1, 16, x.device) for _ in range(2))
    for cache in (one, other):
        cache.layers[0].lazy_initialization(*[torch.zeros(2, 2, 9, 16, dtype=torch.float64)] * 2)
    with torch.no_grad(), write_mode(one, PREFILL, config):
        expected, _ = plain(x, turned, None, past_key_values=one)
        ours = FusedAttention(plain, FusedLinear([plain.q_proj, plain.k_proj, plain.v_proj]))
        found, _ = ours(hidden_states=x, position_embeddings=turned, past_key_values=other, attention_mask=None)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(other.layers[0].keys, one.layers[0].keys)
    torch.testing.assert_close(other.layers[0].values, one.layers[0].values)


def test_what_it_is_for():
    config = LlamaConfig(hidden_size=64, num_attention_heads=4)
    plain = LlamaAttention(config, 0)
    assert can_fuse_attention(plain, plain.q_proj.weight)
    assert not can_fuse_attention(torch.nn.Linear(1, 1), plain.q_proj.weight)
    assert not can_fuse_attention(plain, plain.q_proj.weight.to("meta"))
    plain.sliding_window = 4
    assert not can_fuse_attention(plain, plain.q_proj.weight)


@pytest.mark.parametrize("compiled", [False, True])
def test_in_a_decoder(device, compiled):
    """Captured, and replayed for another prompt."""
    torch.manual_seed(0)
    dtype, backend = (torch.bfloat16, "inductor") if device.type == "cuda" else (torch.float64, "eager")
    sizes = {"hidden_size": 128, "intermediate_size": 96, "num_attention_heads": 2, "num_hidden_layers": 2}
    decoder = LlamaModel(LlamaConfig(**sizes, vocab_size=8, attn_implementation="sdpa")).to(device, dtype).eval()
    capture = CudaGraphCapture(device) if device.type == "cuda" else capture_on_tape
    fused = FusedModules(decoder)
    assert len(fused._attentions) == 2
    layers = CompiledLayers(decoder, backend) if compiled else None
    graphs = DecoderGraphs(decoder, decoder.forward, 1, 256, device, capture, fused, layers)
    for length in (40, 45):  # one bucket
        x = torch.randn(1, length, 128, device=device, dtype=dtype)
        with torch.no_grad():
            expected = decoder(inputs_embeds=x, use_cache=True)
            graphs.reset()
            found = graphs.run({"inputs_embeds": x})
        tolerance = 2e-2 if dtype == torch.bfloat16 else 1e-6  # positions are in float32
        assert error(found, expected.last_hidden_state.double()) < tolerance
        for ours, theirs in zip(graphs.cache.layers, expected.past_key_values.layers):
            assert error(ours.keys[:, :, :length], theirs.keys.double()) < tolerance
            assert error(ours.values[:, :, :length], theirs.values.double()) < tolerance
    assert graphs.graph_count == 1
    torch._dynamo.reset()

"""Attention within sequences of equal length in one call: the same bits as one call for each."""

from types import SimpleNamespace

import pytest
import torch
from transformers import AttentionInterface

from vlprune.cuda_graphs.grouped_attention import NAME, attend_grouped, grouped_attention

MODULE = SimpleNamespace(num_key_value_groups=1, training=False)


def states(lengths, device, dtype, heads=2, width=16):
    """Query, key and value as a tower of patches has them: (1, heads, n, d), the channels of a patch side by side."""
    rand = torch.Generator().manual_seed(len(lengths))
    made = torch.randn(3, sum(lengths), heads, width, generator=rand).to(device, dtype)
    return made.transpose(1, 2).unsqueeze(1).unbind(0), torch.tensor([0, *lengths]).cumsum(0)


def one_by_one(query, key, value, lengths):
    sdpa = AttentionInterface()["sdpa"]
    parts = zip(*(one.split(lengths, dim=2) for one in (query, key, value)))
    return torch.cat([sdpa(MODULE, *part, None, scaling=0.25, is_causal=False)[0] for part in parts], dim=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("lengths", [[16], [4] * 9, [16, 16, 8, 16, 16, 8, 4, 2], [7, 3, 7]], ids=str)
def test_the_same_as_one_call_for_each(lengths, dtype, device):
    given, ends = states(lengths, device, dtype)
    found, weights = attend_grouped(MODULE, *given, None, cu_seq_lens_q=ends, scaling=0.25)
    assert weights is None
    assert found.shape == (1, sum(lengths), 2, 16)
    assert torch.equal(found, one_by_one(*given, lengths))


@pytest.mark.parametrize(
    "lengths",
    [[64] * 81, ([64] * 9 + [32]) * 9 + [16] * 10, [5184], [1024] * 8],
    ids=["windows", "edges", "image", "images"],
)
def test_the_same_at_the_size_of_a_real_tower(lengths, device):
    if device.type != "cuda":
        pytest.skip("needs a GPU, whose kernels depend on the size")
    given, ends = states(lengths, device, torch.bfloat16, heads=16, width=80)
    found, _ = attend_grouped(MODULE, *given, None, cu_seq_lens_q=ends, scaling=0.25)
    assert torch.equal(found, one_by_one(*given, lengths))


def test_the_config_is_as_before_afterwards():
    config = SimpleNamespace(_attn_implementation="sdpa")
    with grouped_attention(config):
        assert config._attn_implementation == NAME
    assert config._attn_implementation == "sdpa"

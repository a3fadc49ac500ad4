"""Qwen-VL's vision towers in fewer kernels, against transformers' own; `test_kernels.py` runs the kernel itself."""

import copy

import pytest
import torch
from torch import nn

from tests.cuda_graphs.test_fused_encoder import assert_close
from tests.cuda_graphs.test_graphed_towers import QWENS, patches_of
from tests.support.families import made as made_model
from tests.support.tape import capture_on_tape
from vlprune.cuda_graphs import vision_tower
from vlprune.cuda_graphs.capture import Capturing
from vlprune.cuda_graphs.fused_linear import fill_up_columns, fill_up_rows
from vlprune.cuda_graphs.fused_patches import (
    FusedGatedMLP,
    FusedPatchAttention,
    FusedPatchEmbedding,
    patch_tower_forwards,
    rotate_queries_and_keys,
)
from vlprune.cuda_graphs.graphed_towers import GraphedTowers

SIZES = [[(1, 6, 4)], [(1, 2, 6), (1, 6, 2)], [(3, 2, 4)]]


@pytest.fixture(params=QWENS, ids=[case.name for case in QWENS])
def qwen(request, device):
    """A model whose tower's weights are large enough for every part to matter; in 16 bits on a GPU."""
    torch.manual_seed(0)
    model = copy.deepcopy(made_model(request.param))
    for weight in model.model.visual.parameters():
        nn.init.normal_(weight, std=0.2)
    return model.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)


def fused(model):
    """Inside, the tower's parts are fused."""
    capture = None if model.device.type == "cuda" else capture_on_tape
    return GraphedTowers(model, Capturing(model, capture, pytest.fail), fused=True)


def features_of(model, sizes):
    pixels, sizes = patches_of(*sizes, device=model.device)
    return model.model.visual(pixels, grid_thw=sizes, return_dict=True).pooler_output


def forwards_of(model):
    return [part.forward for part in model.model.visual.modules() if "forward" in part.__dict__][1:]


@torch.no_grad()
@pytest.mark.parametrize("most", [16_384, 0], ids=["as graphs", "more than graphs hold"])
def test_same_features(qwen, most, monkeypatch):
    monkeypatch.setattr(vision_tower, "MAX_PATCHES", most)
    before = {name: one.clone() for name, one in qwen.state_dict().items()}
    expected = [features_of(qwen, sizes) for sizes in SIZES]
    with fused(qwen):
        kinds = {type(one) for one in forwards_of(qwen)}
        assert {FusedPatchEmbedding, FusedPatchAttention} <= kinds
        assert (FusedGatedMLP in kinds) == (qwen.config.model_type == "qwen2_5_vl")
        for sizes, one in zip(SIZES, expected, strict=True):
            assert_close(features_of(qwen, sizes), one)
        assert all(one.in_use for one in forwards_of(qwen))
    assert not any("forward" in part.__dict__ for part in qwen.modules())
    assert all(torch.equal(one, before[name]) for name, one in qwen.state_dict().items())
    for sizes, one in zip(SIZES, expected, strict=True):
        assert_close(features_of(qwen, sizes), one)


@torch.no_grad()
def test_fused_parts_are_really_called(qwen, monkeypatch):
    """No part's own forward is, where it is fused."""
    with fused(qwen):
        for one in forwards_of(qwen):
            monkeypatch.setattr(one, "plain", pytest.fail)
        features_of(qwen, SIZES[0])


@torch.no_grad()
def test_a_hook_inside_sees_what_it_hooks(qwen):
    expected, seen = features_of(qwen, SIZES[0]), []
    with fused(qwen):
        handle = qwen.model.visual.blocks[1].attn.qkv.register_forward_hook(lambda *given: seen.append(given))
        assert torch.equal(features_of(qwen, SIZES[0]), expected)
        handle.remove()
        assert_close(features_of(qwen, SIZES[0]), expected)
    assert len(seen) == 1


@torch.no_grad()
def test_weights_that_change(qwen):
    """In place, for others, and for what is more than a plain linear layer."""
    block = qwen.model.visual.blocks[0]
    down = [one for one in block.mlp.modules() if isinstance(one, nn.Linear)][-1]

    def change_in_place():
        down.weight.mul_(2)

    def replace():
        down.weight = nn.Parameter(down.weight + 1)
        block.attn.qkv.bias = nn.Parameter(block.attn.qkv.bias + 1)

    def wrap():
        block.attn.proj = nn.Sequential(block.attn.proj, nn.Tanh())

    with fused(qwen):
        for change, in_use in ((change_in_place, True), (replace, True), (wrap, False)):
            before = features_of(qwen, SIZES[0])
            change()
            found = features_of(qwen, SIZES[0])
            assert all(one.in_use == in_use for one in forwards_of(qwen))
            assert not torch.allclose(found, before, atol=1e-2)
            assert_close(found, features_of(copy_of(qwen), SIZES[0]))


def copy_of(model):
    """A model of the same weights, and nothing else."""
    copied = type(model)(model.config).to(model.device, model.dtype).eval()
    for ours, theirs in zip(copied.model.visual.blocks, model.model.visual.blocks, strict=True):
        ours.attn.proj = copy.deepcopy(theirs.attn.proj)
    copied.load_state_dict(model.state_dict())
    return copied


def test_gradients_are_the_towers_own(qwen):
    pixels, sizes = patches_of(*SIZES[0], device=qwen.device)
    pixels = pixels.to(qwen.dtype).requires_grad_()

    def gradient():
        out = qwen.model.visual(pixels, grid_thw=sizes, return_dict=True).pooler_output
        return torch.autograd.grad(out.sum(), pixels)[0]

    expected = gradient()
    with fused(qwen):
        assert torch.equal(gradient(), expected)


@torch.no_grad()
def test_a_fused_tower_can_be_saved(qwen, tmp_path):
    before = {name: one.clone() for name, one in qwen.state_dict().items()}
    with fused(qwen):
        qwen.save_pretrained(tmp_path)
    saved = type(qwen).from_pretrained(tmp_path, dtype=qwen.dtype).to(qwen.device).state_dict()
    assert saved.keys() == before.keys()
    assert all(torch.equal(saved[name], one) for name, one in before.items())


def test_what_it_is_for(qwen):
    tower = qwen.model.visual
    assert patch_tower_forwards(tower)
    tower.config._attn_implementation = "eager"
    assert not patch_tower_forwards(tower)
    tower.config._attn_implementation = "sdpa"
    tower.blocks[0].attn.qkv.forward = lambda x: x
    assert not patch_tower_forwards(tower)
    del tower.blocks[0].attn.qkv.forward
    tower.patch_embed.proj.stride = (1, 1, 1)
    assert not patch_tower_forwards(tower)


@torch.no_grad()
def test_filled_up_weights_are_views():
    first, second, bias = nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(3, 2)), nn.Parameter(torch.randn(3))
    expected = torch.cat([first, torch.zeros(2, 2), second, torch.zeros(2, 2)])
    whole = fill_up_rows([first, second], 2)
    assert torch.equal(whole, expected)
    assert fill_up_rows([first, second], 2).data_ptr() == whole.data_ptr() == first.data_ptr()
    second.add_(1)
    assert torch.equal(whole[5:8], second)
    assert torch.equal(fill_up_rows([bias], 1), torch.cat([bias, torch.zeros(1)]))
    assert fill_up_rows([bias], 1).data_ptr() == bias.data_ptr()
    wide = fill_up_columns(first, 3)
    assert torch.equal(wide, torch.cat([expected[:3], torch.zeros(3, 3)], dim=1))
    assert fill_up_columns(first, 3).data_ptr() == wide.data_ptr() == first.data_ptr()
    first.mul_(2)
    assert torch.equal(wide[:, :2], first)


def compare_kernel(dtype, device):
    """With cos and sin in float32, as Qwen's towers have them, and with another turn for each half."""
    from vlprune.cuda_graphs.kernels import launch_rotate

    for n, heads, d in [(1, 1, 2), (5, 2, 16), (3, 16, 80), (2, 3, 72)]:
        torch.manual_seed(n)
        qkv, cos, sin = torch.randn(n, 3 * heads * d).to(dtype), torch.randn(n, d), torch.randn(n, d)
        expected = rotate_queries_and_keys(qkv.clone(), cos, sin)
        found = launch_rotate(qkv.to(device, copy=True), cos.to(device), sin.to(device)).cpu()
        assert found.dtype == dtype
        assert torch.equal(found[:, 2 * heads * d :], qkv[:, 2 * heads * d :])
        torch.testing.assert_close(found, expected, rtol=1e-6 if dtype == torch.float32 else 1e-2, atol=1e-6)
        if dtype != torch.float32:
            assert (found == expected).float().mean() > 0.99

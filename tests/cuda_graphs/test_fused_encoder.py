"""A vision tower's layers in fewer kernels, against transformers' own; `test_kernels.py` runs the kernel itself."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from transformers import CLIPVisionConfig, CLIPVisionModel, SiglipVisionConfig, SiglipVisionModel

from vlprune.cuda_graphs.capture import Capturing, no_capture
from vlprune.cuda_graphs.fused_encoder import FusedEncoderLayer, add_layer_norm, can_fuse_layer, encoder_forwards
from vlprune.cuda_graphs.fused_tower import TILE
from vlprune.cuda_graphs.graphed_towers import GraphedTowers
from vlprune.cuda_graphs.vision_tower import tower_layers

SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 3, "image_size": 28, "patch_size": 14}
KINDS = {"clip": (CLIPVisionModel, CLIPVisionConfig), "siglip": (SiglipVisionModel, SiglipVisionConfig)}


def make_tower(kind, device, intermediate=40):
    """A tower whose weights are large enough for every part to matter; in 16 bits on a GPU."""
    torch.manual_seed(0)
    model, config = KINDS[kind]
    tower = model(config(**SIZES, intermediate_size=intermediate, attn_implementation="sdpa")).eval()
    for weight in tower.parameters():
        nn.init.normal_(weight, std=0.3)
    return tower.to(device, torch.bfloat16 if device.type == "cuda" else torch.float32)


def fused(tower):
    """Inside, the tower's layers are fused."""
    base = nn.Module()
    base.vision_tower = tower
    model = SimpleNamespace(base_model=base, device=tower.device)
    return GraphedTowers(model, Capturing(model, no_capture, pytest.fail), fused=True)


def pixels_for(tower, images=2):
    return torch.randn(images, 3, 28, 28, device=tower.device, dtype=tower.dtype)


def states_of(tower, pixels):
    """(layers + 1, images, tokens, d): all hidden states."""
    return torch.stack(tower(pixel_values=pixels, output_hidden_states=True).hidden_states)


def assert_close(found, expected):
    """Up to rounding, which the layers that follow make larger."""
    if found.dtype == torch.float32:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    else:
        assert (found - expected).float().norm() < 0.02 * expected.float().norm()


@torch.no_grad()
@pytest.mark.parametrize("images", [2, 9], ids=["as graphs", "more than graphs hold"])
@pytest.mark.parametrize("intermediate", [40, TILE])
@pytest.mark.parametrize("kind", KINDS)
def test_same_states(kind, intermediate, images, device):
    tower = make_tower(kind, device, intermediate)
    pixels, before = pixels_for(tower, images), {name: one.clone() for name, one in tower.state_dict().items()}
    expected = states_of(tower, pixels)
    with fused(tower):
        assert all(isinstance(layer.forward, FusedEncoderLayer) for layer in tower_layers(tower))
        found = states_of(tower, pixels)
        assert all(layer.forward.in_use for layer in tower_layers(tower))
    assert_close(found, expected)
    assert not any("forward" in part.__dict__ for part in tower.modules())
    after = tower.state_dict()
    assert all(torch.equal(after[name], one) and after[name].is_contiguous() for name, one in before.items())
    assert_close(states_of(tower, pixels), expected)


@torch.no_grad()
def test_a_hook_inside_sees_what_it_hooks(device):
    tower = make_tower("siglip", device)
    pixels, seen = pixels_for(tower), []
    expected = states_of(tower, pixels)
    with fused(tower):
        handle = tower_layers(tower)[1].mlp.fc1.register_forward_hook(lambda module, args, out: seen.append(out))
        assert_close(states_of(tower, pixels), expected)
        assert len(seen) == 1
        handle.remove()
        assert_close(states_of(tower, pixels), expected)
        assert len(seen) == 1


@torch.no_grad()
def test_weights_that_change(device):
    """In place, for others, and for what is more than a plain linear layer."""
    tower = make_tower("siglip", device)
    pixels, layer = pixels_for(tower), tower_layers(tower)[0]

    def change_in_place():
        layer.mlp.fc1.weight.mul_(1.5)
        layer.self_attn.k_proj.bias.add_(1)

    def replace():
        layer.mlp.fc1.bias = nn.Parameter(layer.mlp.fc1.bias + 1)
        layer.self_attn.v_proj.weight = nn.Parameter(layer.self_attn.v_proj.weight * 1.5)

    def wrap():
        layer.self_attn.q_proj = nn.Sequential(layer.self_attn.q_proj, nn.Tanh())

    with fused(tower):
        for change, in_use in ((change_in_place, True), (replace, True), (wrap, False)):
            before = states_of(tower, pixels)
            change()
            found = states_of(tower, pixels)
            assert layer.forward.in_use == in_use
            forward = layer.__dict__.pop("forward")
            assert_close(found[:2], states_of(tower, pixels)[:2])
            layer.__dict__["forward"] = forward
            assert not torch.allclose(found, before, atol=1e-2)


def test_gradients_are_the_layers_own(device):
    tower = make_tower("siglip", device)
    pixels = pixels_for(tower).requires_grad_()
    (expected,) = torch.autograd.grad(tower(pixel_values=pixels).last_hidden_state.sum(), pixels)
    with fused(tower):
        (found,) = torch.autograd.grad(tower(pixel_values=pixels).last_hidden_state.sum(), pixels)
    assert torch.equal(found, expected)


@torch.no_grad()
def test_a_fused_tower_can_be_saved(device, tmp_path):
    tower = make_tower("siglip", device)
    before = {name: one.clone() for name, one in tower.state_dict().items()}
    with fused(tower):
        tower.save_pretrained(tmp_path)
    saved = type(tower).from_pretrained(tmp_path, dtype=tower.dtype).to(device).state_dict()
    assert saved.keys() == before.keys()
    assert all(torch.equal(saved[name], one) for name, one in before.items())


def test_what_it_is_for(device):
    tower = make_tower("clip", device)
    layers = tower_layers(tower)
    assert [one.part for one in encoder_forwards(tower, layers)] == layers
    assert not encoder_forwards(tower, [])
    tower.config._attn_implementation = "eager"
    assert not encoder_forwards(tower, layers)
    assert not can_fuse_layer(nn.Linear(2, 2))
    layers[0].mlp.fc2.forward = lambda x: x
    assert not can_fuse_layer(layers[0])
    layers[1].layer_norm1 = nn.RMSNorm(24)
    assert not can_fuse_layer(layers[1])
    assert not can_fuse_layer(layers[2].to("meta"))


def compare_kernel(dtype, device):
    """In 16 bits nearly all values are the same: the sum is rounded before its norm, as it is in two steps."""
    from vlprune.cuda_graphs.kernels import launch_add_layer_norm

    for shape in [(1, 1, 8), (2, 3, 100), (2, 5, 1152), (1, 2, 4096)]:
        torch.manual_seed(shape[-1])
        x, y = (3 + 5 * torch.randn(2, *shape)).to(device, dtype)
        weight, bias, more = torch.randn(3, shape[-1]).to(device, dtype)
        norm = F.layer_norm(x + y, weight.shape, weight, bias, 1e-6)
        pairs = [
            *zip(launch_add_layer_norm(x, y, weight, bias, 1e-6, more), (x + y + more, norm)),
            (
                launch_add_layer_norm(x, None, weight, bias, 1e-6, None)[1],
                F.layer_norm(x, weight.shape, weight, bias, 1e-6),
            ),
            (
                launch_add_layer_norm(x.transpose(0, 1), y.transpose(0, 1), weight, bias, 1e-6, more)[1],
                norm.transpose(0, 1),
            ),
        ]
        for found, expected in pairs:
            assert found.dtype == dtype
            torch.testing.assert_close(found, expected, rtol=1e-4 if dtype == torch.float32 else 1.6e-2, atol=1e-5)
            if dtype != torch.float32:
                assert (found == expected).float().mean() > 0.95
        for found, expected in zip(
            launch_add_layer_norm(x, y, weight, bias, 1e-6, more),
            add_layer_norm(x.cpu(), y.cpu(), weight.cpu(), bias.cpu(), 1e-6, more.cpu()),
        ):
            torch.testing.assert_close(
                found.cpu(), expected, rtol=1e-4 if dtype == torch.float32 else 1.6e-2, atol=2e-2
            )

"""A decoder with fused modules: same values, same weights, nothing left behind."""

import copy

import pytest
import torch
from torch import nn
from transformers import LlavaForConditionalGeneration, Qwen2Config, Qwen2Model

from vlprune import Script, attach
from vlprune.cuda_graphs.fused_attention import FusedAttention
from vlprune.cuda_graphs.fused_linear import LinearSlice
from vlprune.cuda_graphs.fused_modules import LINEAR_GROUPS, FusedModules

GREEDY = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}


@pytest.fixture
def qwen(device):
    """With biases, and fewer key heads than heads."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = Qwen2Model(Qwen2Config(**sizes, num_hidden_layers=2, vocab_size=64)).to(device).double().eval()
    for name, weight in model.named_parameters():
        if name.endswith("bias"):
            nn.init.normal_(weight)
    return model


def fused_parts(module):
    return sum(isinstance(part, (LinearSlice, FusedAttention)) for part in module.modules())


def test_same_values(qwen, device):
    held = {name: value.clone() for name, value in qwen.state_dict().items()}
    x = torch.randn(2, 7, 32, device=device, dtype=torch.float64)
    with torch.no_grad():
        without = qwen(inputs_embeds=x).last_hidden_state
        fused_modules = FusedModules(qwen)
        assert torch.equal(qwen(inputs_embeds=x).last_hidden_state, without)
        with fused_modules.installed(short_prompt=False, compiled=True):
            assert fused_parts(qwen) == 2 * sum(map(len, LINEAR_GROUPS))
            torch.testing.assert_close(qwen(inputs_embeds=x).last_hidden_state, without)
    assert fused_parts(qwen) == 0
    assert list(qwen.state_dict()) == list(held)
    assert all(torch.equal(value, held[name]) for name, value in qwen.state_dict().items())


def test_one_memory(qwen):
    parameters = list(qwen.parameters())
    first = FusedModules(qwen)
    again = FusedModules(qwen)  # they lie side by side already
    assert [a.module.fused.weight.data_ptr() for a in first._linears] == [
        b.module.fused.weight.data_ptr() for b in again._linears
    ]
    assert all(one is other for one, other in zip(parameters, qwen.parameters()))
    attention = qwen.layers[0].self_attn
    fused = first._linears[0].module.fused
    assert fused.weight.shape == (64, 32)
    with torch.no_grad():
        attention.k_proj.weight.fill_(3.0)
        attention.v_proj.bias.fill_(5.0)
    assert (fused.weight[32:48] == 3.0).all()
    assert (fused.bias[48:] == 5.0).all()


@pytest.mark.parametrize("change", ["class", "forward", "dtype", "tensor", "shared", "bias"])
def test_layers_that_are_more_than_plain(qwen, change):
    mlp = qwen.layers[0].mlp
    if change == "class":
        mlp.up_proj.__class__ = type("Adapted", (nn.Linear,), {})
    elif change == "forward":
        mlp.up_proj.forward = mlp.up_proj.forward
    elif change == "dtype":
        mlp.up_proj.float()
    elif change == "tensor":
        mlp.up_proj.weight = nn.Parameter(mlp.up_proj.weight.detach().as_subclass(type("Packed", (torch.Tensor,), {})))
    elif change == "shared":
        mlp.up_proj.weight = mlp.gate_proj.weight
    else:
        mlp.up_proj.bias = nn.Parameter(mlp.up_proj.weight.new_zeros(48))
    assert mlp not in [linear.parent for linear in FusedModules(qwen)._linears]


def test_the_model_afterwards(model, processor, graphed, single, tmp_path):
    held = copy.deepcopy(model.state_dict())
    with attach(model, Script(keep=5), processor=processor):
        without = model.generate(**single, **GREEDY)
    with graphed(model), attach(model, Script(keep=5), processor=processor):
        for _ in range(2):
            assert torch.equal(model.generate(**single, **GREEDY), without)
    assert fused_parts(model) == 0
    model.save_pretrained(tmp_path)
    for one in (model, LlavaForConditionalGeneration.from_pretrained(tmp_path), copy.deepcopy(model).cpu()):
        assert list(one.state_dict()) == list(held)
        assert all(torch.equal(value, held[name].to(value.device)) for name, value in one.state_dict().items())


def test_weights_that_are_moved(model, processor, graphed, single):
    """As `model.to` does: they no longer lie side by side, so they are put there anew."""
    with graphed(model):
        without = model.generate(**single, **GREEDY)
        layer = model.get_decoder().layers[0].mlp
        layer.up_proj.weight.data = -layer.up_proj.weight.data.clone()
        layer.gate_proj.weight.data = layer.gate_proj.weight.data.clone()
        moved = model.generate(**single, **GREEDY)
        layer.up_proj.weight.data = -layer.up_proj.weight.data.clone()
        assert torch.equal(model.generate(**single, **GREEDY), without)
        layer.up_proj.weight.data.neg_()
    assert torch.equal(model.generate(**single, **GREEDY), moved)

"""Layers are compiled once, not once each; and what a graph depends on is seen when it changes."""

import copy
import sys

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from tests.support import tiny_llava as tiny
from vlprune.cuda_graphs.capture import CompiledLayers, ModuleInspector, no_capture
from vlprune.cuda_graphs.graphed_model import GraphedModel

GREEDY = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}


@pytest.mark.parametrize("layers", [2, 5])
def test_one_compilation_for_all_layers(single, device, layers):
    torch._dynamo.reset()
    model = tiny.llava(layers=layers).to(device)
    without = model.generate(**single, **GREEDY)
    counter = CompileCounter()
    with GraphedModel(model, capture=no_capture) as graphs:
        graphs._compiled_layers = CompiledLayers(model.get_decoder(), backend=counter)
        for _ in range(3):  # the first prefill makes the cache and is not compiled
            assert torch.equal(model.generate(**single, **GREEDY), without)
    # prefill and step: positions, layers, last norm; torch 2.6 on Python 3.10 makes three more, of however many layers
    newer = hasattr(torch._dynamo.config, "recompile_limit") or sys.version_info >= (3, 11)
    assert counter.frame_count == (2 * 3 if newer else 9)
    assert [layer.self_attn.layer_idx for layer in model.get_decoder().layers] == list(range(layers))
    torch._dynamo.reset()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="on a CPU it takes most of a minute, and a C++ compiler")
def test_the_real_compiler(single, device):
    torch._dynamo.reset()
    model = tiny.llava().to(device)
    without = model.generate(**single, **GREEDY)
    with GraphedModel(model, compile=True):
        for _ in range(2):
            assert torch.equal(model.generate(**single, **GREEDY), without)
    torch._dynamo.reset()


def test_an_inspector_sees_what_changes_after_it_was_made():
    module = torch.nn.Sequential(torch.nn.Sequential(torch.nn.Linear(2, 2)), torch.nn.ReLU())
    inspect = ModuleInspector(module)
    states = [inspect()]
    module[0][0] = torch.nn.Linear(2, 2)
    states.append(inspect())
    module[1].add_module("inside", torch.nn.Linear(2, 2))  # which had no children, and no weights
    states.append(inspect())
    module[0].register_parameter("scale", torch.nn.Parameter(torch.ones(2)))
    states.append(inspect())
    module[0][0].weight.data = module[0][0].weight.data.clone()
    states.append(inspect())
    assert len({state.weight_addresses for state in states}) == len(states)
    assert not any(state.hooked for state in states)
    other = copy.deepcopy(inspect)
    handle = module[1].inside.register_forward_hook(lambda *_: None)
    assert inspect().hooked
    assert not other().hooked
    handle.remove()
    assert inspect() == states[-1] != other()
    module.register_forward_hook(lambda *_: None)  # its own is called with a replay
    assert not inspect().hooked
    module[1].inside._hf_hook = None
    assert inspect().hooked

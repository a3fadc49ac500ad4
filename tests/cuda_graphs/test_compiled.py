"""Layers are compiled once, not once each."""

import pytest
import torch
from torch._dynamo.testing import CompileCounter

from tests.support import tiny_llava as tiny
from vlprune.cuda_graphs.capture import Compiled, direct
from vlprune.cuda_graphs.graphed import GraphedModel
from vlprune.pruning.patched_attributes import patched_attributes

GREEDY = {"max_new_tokens": 6, "min_new_tokens": 6, "do_sample": False}


@pytest.mark.parametrize("layers", [2, 5])
def test_one_compilation_for_all_layers(single, device, layers):
    torch._dynamo.reset()
    model = tiny.llava(layers=layers).to(device)
    without = model.generate(**single, **GREEDY)
    counter = CompileCounter()
    with GraphedModel(model, capture=direct) as graphs:
        graphs._compiled = Compiled(model.get_decoder(), backend=counter)
        for _ in range(3):  # the first prefill makes the cache and is not compiled
            assert torch.equal(model.generate(**single, **GREEDY), without)
    assert counter.frame_count == 2 * 3  # prefill and step: positions, layers, last norm
    assert [layer.self_attn.layer_idx for layer in model.get_decoder().layers] == list(range(layers))
    torch._dynamo.reset()


def test_instead():
    class Thing:
        pass

    thing = Thing()
    thing.own = 1
    with patched_attributes(thing, {"own": 2}), patched_attributes(thing, {"new": 3}):
        assert (thing.own, thing.new) == (2, 3)
    assert vars(thing) == {"own": 1}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="on a CPU it takes most of a minute, and a C++ compiler")
def test_the_real_compiler(single, device):
    torch._dynamo.reset()
    model = tiny.llava().to(device)
    without = model.generate(**single, **GREEDY)
    with GraphedModel(model, compile=True):
        for _ in range(2):
            assert torch.equal(model.generate(**single, **GREEDY), without)
    torch._dynamo.reset()

"""Whatever goes wrong in a call, and wherever: the model stays usable, and detaching leaves nothing."""

import functools

import pytest
import torch

from tests.pruning.test_attach import state
from tests.support.scripts import load_script
from tests.support.tape import capture_on_tape
from vlprune import FastV, Script, VisionZip, attach
from vlprune.cuda_graphs import graphed_model, graphed_towers

GREEDY = {"do_sample": False, "max_new_tokens": 3}


@pytest.fixture(scope="module")
def faults():
    """The long campaign, of which this is the short form."""
    return load_script("benchmarks/faults.py")


def fail(error):
    def hook(*args):
        raise error

    return hook


@pytest.mark.parametrize("where", ["tower", "projector", "first layer", "last layer", "head"])
@pytest.mark.parametrize("direct", [False, True], ids=["generate", "forward"])
@pytest.mark.parametrize("method", [Script(keep=9), FastV(keep=9)], ids=lambda method: method.name)
def test_out_of_memory_during_prefill(model, processor, single, where, direct, method):
    """The error comes through as it is, for callers go by it, and a smaller call may follow."""
    layers = model.get_decoder().layers
    parts = {"first layer": layers[0], "last layer": layers[-1], "head": model.lm_head}
    parts |= {"tower": model.model.vision_tower, "projector": model.model.multi_modal_projector}
    part = parts[where]

    def call():
        with torch.no_grad():
            return model(**single).logits if direct else model.generate(**single, **GREEDY)

    plain = call()
    before = state(model)
    with attach(model, method, processor=processor) as pruner:
        expected = call()
        pruner.clear_cache()
        handle = part.register_forward_pre_hook(fail(torch.OutOfMemoryError("CUDA out of memory.")))
        with pytest.raises(torch.OutOfMemoryError, match="CUDA out of memory"):
            call()
        handle.remove()
        assert torch.equal(call(), expected)
        assert pruner.last.after == 9
    assert state(model) == before
    assert torch.equal(call(), plain)


@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError])
@pytest.mark.parametrize("method", [Script(keep=9), VisionZip(keep=9), FastV(keep=9)], ids=lambda method: method.name)
@pytest.mark.parametrize("direct", [False, True], ids=["generate", "forward"])
def test_an_error_at_any_step_of_our_code(faults, model, processor, single, direct, method, error):
    """Raised where the n-th function of ours is entered: every place where Ctrl-C may fall, a few at a time."""

    def call():
        with torch.no_grad():
            return model(**single).logits if direct else model.generate(**single, **GREEDY)

    call()  # whatever transformers itself stores on first use
    before = state(model)
    with attach(model, method, processor=processor, cache_bytes=0):
        expected = call()
        steps = faults.count_steps(call)
        assert steps > 50
        raised = 0
        for step in range(1, steps, steps // 12):
            raised += faults.raised_at(step, error, call)
            assert torch.equal(call(), expected), f"after step {step}"
        assert raised > 8  # torch silences what a hook raises while another error is on its way
    assert state(model) == before


@pytest.fixture
def graphs_on_tape(monkeypatch, device):
    """`attach` takes every device for a GPU; on a CPU graphs are tapes."""
    if device.type != "cuda":
        towers, whole = graphed_towers.graph_towers, graphed_model.GraphedModel
        monkeypatch.setattr(graphed_towers, "graph_towers", functools.partial(towers, capture=capture_on_tape))
        monkeypatch.setattr(graphed_model, "GraphedModel", functools.partial(whole, capture=capture_on_tape))


@pytest.mark.parametrize("error", [KeyboardInterrupt, torch.OutOfMemoryError])
@pytest.mark.parametrize("method", [Script(keep=9), FastV(keep=9)], ids=lambda method: method.name)
@pytest.mark.parametrize("cuda_graphs", [False, "towers", True])
@pytest.mark.usefixtures("graphs_on_tape")
def test_an_error_while_attaching(faults, model, processor, single, method, error, cuda_graphs):
    """Either the pruner is there, or nothing of it is."""
    model.generate(**single, **GREEDY)
    before = state(model)

    def use():
        made.append(attach(model, method, processor=processor, cuda_graphs=cuda_graphs))

    made = []
    use()  # the first time more is loaded
    made.pop().detach()
    steps = faults.count_steps(use)
    made.pop().detach()
    for step in range(1, steps + 1):
        assert faults.raised_at(step, error, use)
        assert not made
        assert state(model) == before, f"step {step} of {steps}"


def test_an_error_while_detaching(faults, model, processor, single):
    """It can be done again."""
    model.generate(**single, **GREEDY)
    before, step = state(model), 0
    while True:
        pruner, step = attach(model, FastV(keep=9), processor=processor), step + 1
        raised = faults.raised_at(step, KeyboardInterrupt, pruner.detach)
        pruner.detach()
        assert state(model) == before
        if not raised:
            break
    assert step > 2

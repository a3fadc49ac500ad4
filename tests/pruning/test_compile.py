"""`torch.compile(model)`: its calls are pruned too, compiled before or after the pruner came."""

import pytest
import torch

from tests.support import tiny_llava as tiny
from tests.support.versions import needs_compile
from vlprune import FastV, Random, Script, attach

pytestmark = needs_compile
GREEDY = {"do_sample": False, "max_new_tokens": 3}


@pytest.fixture(scope="module")
def weights(device):
    """Of few layers, each of which takes its time to trace."""
    vision = tiny.vision_config()
    vision.num_hidden_layers = 1
    return tiny.llava(vision=vision).to(device)


@pytest.fixture(autouse=True)
def _fresh_compiler():
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def compiled(model):
    """Dynamo traces the model and its hooks as ever; what it has traced runs without a C++ compiler."""
    return torch.compile(model, backend="eager")


@pytest.mark.parametrize("method", [Script(keep=9), FastV(keep=9)], ids=lambda method: method.name)
def test_compiled_after_attaching(model, processor, single, method):
    with torch.no_grad(), attach(model, method, processor=processor) as pruner:
        expected = model(**single).logits, model.generate(**single, **GREEDY)
        fast = compiled(model)
        for _ in range(2):
            torch.testing.assert_close(fast(**single).logits, expected[0])
        assert pruner.last.after == 9
        assert torch.equal(fast.generate(**single, **GREEDY), expected[1])


def test_compiled_and_called_before_attaching(model, processor, single):
    """A graph that was traced without the pruner must not answer for the model with it, nor the other way round."""
    fast = compiled(model)
    with torch.no_grad():
        plain = fast(**single).logits
        with attach(fast, Script(keep=9), processor=processor) as pruner:
            found = fast(**single).logits
            assert pruner.model is model
            assert pruner.last.after == 9
            torch.testing.assert_close(found, model(**single).logits)
            assert torch.equal(fast.generate(**single, **GREEDY), model.generate(**single, **GREEDY))
        torch.testing.assert_close(fast(**single).logits, plain)


def test_compiled_in_place(model, single):
    """`model.compile()` keeps the class and compiles the call."""
    with torch.no_grad():
        model.compile(backend="eager")
        plain = model(**single).logits
        with attach(model, Random(keep=9)) as pruner:
            assert model(**single).logits.shape[1] == plain.shape[1] - 27
            assert pruner.last.after == 9
        torch.testing.assert_close(model(**single).logits, plain)

"""PEFT's adapters around a model: what the wrapper calls is pruned too."""

import pytest
import torch

from vlprune import Random, attach

peft = pytest.importorskip("peft")
GREEDY = {"do_sample": False, "max_new_tokens": 4}


@pytest.fixture
def wrapped(model):
    config = peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    return peft.get_peft_model(model, config).eval()


def test_lora_is_pruned(wrapped, single):
    inner = wrapped.get_base_model()
    plain = wrapped.generate(**single, **GREEDY)
    with attach(inner, Random(keep=9)):
        expected = inner.generate(**single, **GREEDY), inner(**single).logits
    with attach(wrapped, Random(keep=9)) as pruner:
        assert pruner.family.name == "llava"
        found = wrapped.generate(**single, **GREEDY)
        assert pruner.last.after == 9
        logits = wrapped(**single).logits
    assert torch.equal(found, expected[0])
    assert torch.equal(logits, expected[1])
    assert not torch.equal(found, plain)
    assert torch.equal(wrapped.generate(**single, **GREEDY), plain)
    assert wrapped(**single).logits.shape[1] == single["input_ids"].shape[1]
    assert "forward" not in vars(wrapped.base_model)

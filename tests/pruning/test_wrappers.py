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


def test_a_peft_that_calls_past_the_hooks(wrapped, single, monkeypatch):
    """As older versions do."""
    tuner = type(wrapped.base_model)
    monkeypatch.setattr(tuner, "forward", lambda self, *args, **kwargs: self.model.forward(*args, **kwargs))
    with attach(wrapped, Random(keep=9)) as pruner:
        assert wrapped.base_model(**single).logits.shape[1] < single["input_ids"].shape[1]
        assert pruner.last.after == 9


def test_the_tuner_inside_the_wrapper(wrapped, single):
    """PEFT's own layer between the wrapper and the model, which some trainers hand on."""
    with attach(wrapped, Random(keep=9)):
        expected = wrapped.generate(**single, **GREEDY)
    with attach(wrapped.base_model, Random(keep=9)) as pruner:
        assert pruner.family.name == "llava"
        assert torch.equal(wrapped.generate(**single, **GREEDY), expected)
        assert torch.equal(wrapped.base_model.generate(**single, **GREEDY), expected)
        assert pruner.last.after == 9


def test_adapters_of_transformers_own(model, single):
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["q_proj", "v_proj"], init_lora_weights=False))
    with attach(model.eval(), Random(keep=9)) as pruner:
        model.generate(**single, **GREEDY)
        assert pruner.last.after == 9
        assert pruner.family.name == "llava"


def test_virtual_tokens_are_refused(model, single):
    """Prompt tuning puts its vectors before the prompt, as embeddings, so that the ids are gone."""
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2, token_dim=32, num_layers=2)
    tuned = peft.get_peft_model(model, config).eval()
    with attach(tuned, Random(keep=9)), pytest.raises(ValueError, match="input_ids must be passed with the images"):
        tuned(**single)


@pytest.fixture
def process_group(tmp_path):
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def test_distributed_data_parallel(model, single, process_group):
    spread = torch.nn.parallel.DistributedDataParallel(model)
    with torch.no_grad(), attach(spread, Random(keep=9)) as pruner:
        assert pruner.model is model
        assert torch.equal(spread(**single).logits, model(**single).logits)
        assert pruner.last.after == 9


def test_data_parallel_over_several_gpus_is_refused(model):
    spread = torch.nn.DataParallel(model)
    spread.device_ids = [0, 1]
    with pytest.raises(TypeError, match=r"^model is a DataParallel over 2 GPUs, .* use DistributedDataParallel\.$"):
        attach(spread, Random(keep=9))

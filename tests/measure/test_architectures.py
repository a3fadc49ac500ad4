"""Published architectures, shrunk in width and depth: their prompts fit them."""

import pytest
import torch

from vlprune import Random, attach
from vlprune.measure.architectures import ARCHITECTURES, get_architecture

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "depth": 2,
    "num_attention_heads": 2,
    "num_heads": 2,
    "out_hidden_size": 32,
}


@pytest.fixture
def small(monkeypatch):
    """An architecture with all that says how tokens are counted, and little else."""

    def shrink(one):
        config = one.config()
        for part, sizes in ((config.text_config, TEXT), (config.vision_config, VISION)):
            for name, size in sizes.items():
                if hasattr(part, name):
                    setattr(part, name, size)
        config.text_config.layer_types = ["full_attention"]
        if hasattr(config.vision_config, "fullatt_block_indexes"):
            config.vision_config.fullatt_block_indexes = [1]
            config.text_config.rope_parameters = {
                "rope_type": "default",
                "mrope_section": [2, 3, 3],
                "rope_theta": 1e6,
            }
        small = type(one)(**{**vars(one), "config": lambda: config})
        return small.build("cpu", torch.float32)

    return shrink


@pytest.mark.parametrize("name", [one.name for one in ARCHITECTURES])
def test_prompts_fit(small, name):
    one = get_architecture(name)
    model = small(one)
    inputs = one.inputs(model, text=8)
    assert inputs["input_ids"].shape == (1, one.tokens + 8)
    with attach(model, Random(keep=5)) as pruner, torch.no_grad():
        model(**inputs)
    (record,) = pruner.records
    assert record.before + record.structure[0] == one.tokens
    assert record.after == 5


def test_a_batch_is_the_same_prompt_twice(small):
    one = get_architecture("internvl3-8b")
    inputs = one.inputs(small(one), text=8, batch=2)
    first, second = inputs["pixel_values"].chunk(2)
    assert torch.equal(first, second)
    assert inputs["input_ids"].shape == (2, one.tokens + 8)

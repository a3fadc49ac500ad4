import pytest
import torch
from transformers import DynamicCache, StaticCache

from vlprune import Script, attach
from vlprune.measure import LLMShape, kv_bytes, kv_cache_bytes

LENGTHS = dict(max_new_tokens=5, min_new_tokens=5, do_sample=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_formula_is_what_a_cache_holds(model, inputs, dtype):
    model = model.to(dtype)
    inputs["pixel_values"] = inputs["pixel_values"].to(dtype)
    out = model.generate(**inputs, **LENGTHS, return_dict_in_generate=True)
    assert kv_cache_bytes(out.past_key_values) == kv_bytes(model, 20 + 4)  # the last new token is never fed back


def test_a_pruned_prompt_takes_less(model, inputs):
    with attach(model, Script(keep=4)):
        out = model.generate(**inputs, **LENGTHS, return_dict_in_generate=True)
    assert kv_cache_bytes(out.past_key_values) == kv_bytes(model, 20 - 12 + 4)


def test_batch_and_dtype(model):
    one = kv_bytes(model, 10)
    assert kv_bytes(model, 10, batch=3) == 3 * one
    assert kv_bytes(model, 10, dtype=torch.float16) == one // 2


def test_caches_of_all_kinds(model):
    assert kv_cache_bytes(DynamicCache()) == 0
    static = StaticCache(config=model.config.get_text_config(), max_cache_len=8)
    assert kv_cache_bytes(static) == 0  # it reserves when first used
    static.update(torch.zeros(1, 2, 3, 8), torch.zeros(1, 2, 3, 8), 0)
    assert kv_cache_bytes(static) == 2 * 2 * 8 * 8 * 4


def test_wrong_input(model):
    with pytest.raises(TypeError, match="cache is a tuple"):
        kv_cache_bytes((1, 2))
    with pytest.raises(ValueError, match="dtype=None"):
        kv_bytes(LLMShape.of(model), 10)

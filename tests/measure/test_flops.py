"""The formulas against torch's own counter, which must see attention as plain products (the MATH backend)."""

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode
from transformers import (
    AutoModelForCausalLM,
    CLIPVisionConfig,
    GemmaConfig,
    GPT2Config,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    MistralConfig,
    Phi3Config,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2Config,
    Qwen2VLForConditionalGeneration,
    Qwen3Config,
    Qwen3VLForConditionalGeneration,
    SiglipVisionConfig,
)
from transformers.models.qwen2_5_vl.configuration_qwen2_5_vl import Qwen2_5_VLTextConfig
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLTextConfig
from transformers.models.qwen3_vl.configuration_qwen3_vl import Qwen3VLTextConfig

from tests.support.tiny_llm import SIZES, TOWER
from vlprune.measure import LLMShape, llm_flops, paper_macs, vision_flops
from vlprune.measure.flops import GATED

ROPE = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 1e4}

DECODERS = {
    "llama": LlamaConfig(**SIZES),
    "llama, no grouping": LlamaConfig(**{**SIZES, "num_key_value_heads": 6}),
    "llama, wide heads": LlamaConfig(**SIZES, head_dim=16),
    "mistral": MistralConfig(**SIZES),
    "qwen2": Qwen2Config(**SIZES),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
    "gemma": GemmaConfig(**SIZES, head_dim=16),
    "phi3": Phi3Config(**SIZES),
    "qwen2-vl": Qwen2VLTextConfig(**SIZES, rope_parameters=ROPE),
    "qwen2.5-vl": Qwen2_5_VLTextConfig(**SIZES, rope_parameters=ROPE),
    "qwen3-vl": Qwen3VLTextConfig(**SIZES, head_dim=16, rope_parameters=ROPE),
}
#: The models that these decoders come in, where a decoder has no causal model of its own.
INSIDE = {
    "qwen2_vl_text": (Qwen2VLForConditionalGeneration, {"embed_dim": 16, "depth": 1, "num_heads": 2}),
    "qwen2_5_vl_text": (Qwen2_5_VLForConditionalGeneration, {"hidden_size": 16, "depth": 1, "num_heads": 2}),
    "qwen3_vl_text": (Qwen3VLForConditionalGeneration, {"hidden_size": 16, "depth": 1, "num_heads": 2}),
}
TOWERS = {
    "clip": CLIPVisionConfig(**TOWER),
    "siglip": SiglipVisionConfig(**TOWER),
    "siglip, no head": SiglipVisionConfig(**TOWER, vision_use_head=False),
}
VICUNA = LLMShape(layers=32, width=4096, inner=11008, heads=32, kv_heads=32, head_width=128, vocabulary=32064)


def decoder(name):
    config = DECODERS[name]
    if config.model_type not in INSIDE:
        return AutoModelForCausalLM.from_config(config).eval()
    kind, vision = INSIDE[config.model_type]
    whole = kind.config_class(text_config=config.to_dict(), vision_config=vision)
    return kind(whole).eval()


def counted(call):
    """What the counter sees, less RoPE's table of angles, which some versions of transformers make by a product."""
    with sdpa_kernel(SDPBackend.MATH), torch.no_grad(), FlopCounterMode(display=False) as counter:
        result = call()
    parts = counter.get_flop_counts()
    angles = sum(sum(ops.values()) for name, ops in parts.items() if name.endswith("rotary_emb"))
    return counter.get_total_flops() - angles, result


def test_every_known_decoder_is_checked_here():
    assert {config.model_type for config in DECODERS.values()} == set(GATED)


@pytest.mark.parametrize("name", DECODERS)
@pytest.mark.parametrize("tokens", [1, 7, 33])
def test_prefill_equals_the_counter(name, tokens):
    model = decoder(name)
    ids = torch.randint(1, 90, (2, tokens))
    seen, _ = counted(lambda: model(ids, logits_to_keep=1))
    assert llm_flops(model, tokens, batch=2).prefill == seen


@pytest.mark.parametrize("name", DECODERS)
def test_generate_equals_the_counter(name):
    model = decoder(name)
    ids = torch.randint(1, 90, (1, 11))
    seen, out = counted(lambda: model.generate(ids, max_new_tokens=5, min_new_tokens=5, do_sample=False))
    assert out.shape[1] == 16
    flops = llm_flops(model, 11, 5)
    assert flops.total == flops.prefill + flops.decode == seen


def llava(tower, decoder="llama", **more):
    config = LlavaConfig(vision_config=TOWERS[tower], text_config=DECODERS[decoder], image_token_index=95, **more)
    return LlavaForConditionalGeneration(config).eval()


@pytest.mark.parametrize(
    ("tower", "strategy"),
    [("clip", "default"), ("clip", "full"), ("siglip", "full"), ("siglip, no head", "full")],
)
@pytest.mark.parametrize("layer", [-2, [-2, -1]])
def test_vision_equals_the_counter(tower, layer, strategy):
    model = llava(tower, vision_feature_layer=layer, vision_feature_select_strategy=strategy)
    seen, _ = counted(lambda: model.get_image_features(torch.randn(1, 3, 32, 32)))
    assert vision_flops(model) == vision_flops(model.config) == seen


def test_a_whole_llava_is_the_sum_of_its_parts():
    model = llava("clip")
    ids = torch.tensor([[1] + [95] * 16 + [5, 6, 7]])
    inputs = dict(input_ids=ids, pixel_values=torch.randn(1, 3, 32, 32))
    seen, _ = counted(lambda: model.generate(**inputs, max_new_tokens=3, min_new_tokens=3, do_sample=False))
    parts = llm_flops(model, 20, 3).total + vision_flops(model)
    assert parts == seen


def test_published_figures():
    """LLaVA-1.5-7B and LLaVA-NeXT-7B as papers quote them, in multiply-adds over visual tokens."""
    for tokens, tera in ((576, 3.82), (2880, 20.83), (64, 0.415), (320, 2.10)):
        assert paper_macs(VICUNA, tokens) / 1e12 == pytest.approx(tera, rel=0.005)
    T, n, d, m = 32, 576, 4096, 11008
    assert paper_macs(VICUNA, n) == T * (4 * n * d**2 + 2 * n**2 * d + 3 * n * d * m)
    assert paper_macs(VICUNA, 0) == 0
    halves = [n] * (T // 2) + [64] * (T // 2)
    assert 2 * paper_macs(VICUNA, halves) == paper_macs(VICUNA, n) + paper_macs(VICUNA, 64)
    with pytest.raises(ValueError, match=f"visual_tokens has 2 entries, but the LLM has {T} layers"):
        paper_macs(VICUNA, [n, 64])


def test_wrong_input():
    with pytest.raises(ValueError, match="'gpt2' decoder"):
        llm_flops(GPT2Config(), 10)
    with pytest.raises(ValueError, match="prompt=0"):
        llm_flops(VICUNA, 0)
    with pytest.raises(ValueError, match="new_tokens=0"):
        llm_flops(VICUNA, 5, 0)
    with pytest.raises(ValueError, match="visual_tokens=-1"):
        paper_macs(VICUNA, -1)
    config = LlavaConfig(vision_config=TOWERS["clip"], text_config=DECODERS["llama"])
    config.vision_config.model_type = "pixtral"
    try:
        with pytest.raises(ValueError, match="'pixtral' tower"):
            vision_flops(config)
    finally:
        config.vision_config.model_type = "clip_vision_model"


def test_layers_that_see_fewer_tokens():
    llm = LlamaConfig(**SIZES)
    whole, cut = llm_flops(llm, 20, 3), llm_flops(llm, [20, 12, 12], 3)
    assert llm_flops(llm, [20, 20, 20], 3) == whole
    shape = LLMShape.of(llm)
    assert whole.prefill - cut.prefill == 2 * (shape.layer(20, 20) - shape.layer(12, 12))
    assert whole.decode - cut.decode == 2 * sum(shape.layer(1, 20 + t) - shape.layer(1, 12 + t) for t in (1, 2))
    with pytest.raises(ValueError, match="prompt has 2 entries, but the LLM has 3 layers"):
        llm_flops(llm, [20, 12])

"""Tiny models of six layers, made once."""

import functools

from transformers import LlavaConfig, LlavaForConditionalGeneration

from tests.support import layers_reference as reference
from tests.support.families import llava, others, qwen
from tests.support.families.case import IMAGE, Case, clip_tower, grid, llama, noise

LAYERS = 6


class Deep:
    """More layers than the family's own case has."""

    def config(self):
        config = super().config()
        text = config.get_text_config()
        text.num_hidden_layers = LAYERS
        if getattr(text, "layer_types", None) is not None:
            text.layer_types = ["full_attention"] * LAYERS
        return config


class PlainLlava(Case):
    name, model_class = "llava", LlavaForConditionalGeneration

    def config(self):
        return LlavaConfig(vision_config=clip_tower(48), text_config=llama(), image_token_id=IMAGE)

    def image(self, seed):
        return grid("image", "image", 6, 6, noise(1, 3, 48, 48, seed=seed))


def deep(case):
    return type(f"Deep{case.__name__}", (Deep, case), {})()


LLAVA = deep(PlainLlava)
CASES = [LLAVA, *map(deep, (llava.LlavaNext, others.InternVL, qwen.Qwen25VL, qwen.Qwen3VL))]


@functools.cache
def made(case):
    return case.model()


@functools.cache
def machine(case):
    return reference.Machine(made(case))

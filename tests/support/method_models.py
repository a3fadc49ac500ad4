"""The four models that every method is tried on: tiny ones of the real classes, from the families' tests."""

from transformers import LlavaConfig, LlavaForConditionalGeneration

from tests.support.families import llava, others, qwen
from tests.support.families.case import IMAGE, PATCH, Case, clip_tower, grid, llama, noise


class Llava(Case):
    """Five by five tokens per image."""

    name, model_class = "llava", LlavaForConditionalGeneration

    def config(self):
        return LlavaConfig(vision_config=clip_tower(5 * PATCH), text_config=llama(), image_token_index=IMAGE)

    def image(self, seed):
        return grid("image", "image", 5, 5, noise(1, 3, 5 * PATCH, 5 * PATCH, seed=seed))


CASES = [Llava(), llava.LlavaNext(), others.InternVL(), qwen.Qwen25VL()]
EVERY_TOWER = [
    *CASES,
    llava.LlavaNextVideo(),
    llava.LlavaOnevision(),
    llava.VideoLlava(),
    qwen.Qwen2VL(),
    qwen.Qwen3VL(),
]

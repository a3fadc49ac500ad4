"""The four models that every method is tried on, and all whose vision tower tells its attention."""

from tests.support.families import llava, others, qwen

CASES = [llava.Llava(), llava.LlavaNext(), others.InternVL(), qwen.Qwen25VL()]
EVERY_TOWER = [
    *CASES,
    llava.LlavaNextVideo(),
    llava.LlavaOnevision(),
    llava.VideoLlava(),
    qwen.Qwen2VL(),
    qwen.Qwen3VL(),
]

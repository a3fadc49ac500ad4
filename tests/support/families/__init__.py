"""One case per model family: a tiny model of the real class, and prompts for it."""

import functools

from tests.support.families import llava, others, qwen

CASES = [
    llava.LlavaNext(),
    llava.LlavaNextVideo(),
    llava.LlavaOnevision(),
    llava.VideoLlava(),
    others.InternVL(),
    qwen.Qwen2VL(),
    qwen.Qwen25VL(),
    qwen.Qwen3VL(),
    others.Gemma3(),
    others.Idefics3(),
    others.PaliGemma(),
    others.SmolVLM(),
    others.VipLlava(),
]


@functools.cache
def made(case):
    """The tiny model of a case, made once; whoever uses it leaves it as it was."""
    return case.model()

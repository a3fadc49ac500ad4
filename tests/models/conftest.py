"""The families, and one tiny model of each, made once."""

import functools

import pytest
import torch

from . import llava, others, qwen

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
    return case.model()


@pytest.fixture
def model(case):
    """The family's model; a test must leave it as it found it."""
    yield made(case)
    assert "generate" not in made(case).__dict__


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)

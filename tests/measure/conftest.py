"""A tiny random LLaVA of 16 visual tokens, and a prompt of 20 tokens for it."""

import pytest
import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

from tests.support.tiny_llm import SIZES, TOWER


@pytest.fixture
def model(device):
    torch.manual_seed(0)
    vision, text = CLIPVisionConfig(**TOWER), LlamaConfig(**SIZES)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=95)
    return LlavaForConditionalGeneration(config).eval().to(device)


@pytest.fixture
def inputs(device):
    torch.manual_seed(1)
    ids = torch.tensor([[1] + [95] * 16 + [5, 6, 7]], device=device)
    return {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(1, 3, 32, 32, device=device),
    }

"""A tiny random LLaVA of 16 visual tokens, and a prompt of 20 tokens for it."""

import pytest
import torch
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration


@pytest.fixture
def model(device):
    torch.manual_seed(0)
    vision = CLIPVisionConfig(
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=2,
        image_size=32,
        patch_size=8,
    )
    text = LlamaConfig(
        vocab_size=97,
        hidden_size=48,
        intermediate_size=80,
        num_hidden_layers=3,
        num_attention_heads=6,
        num_key_value_heads=2,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=96,
    )
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

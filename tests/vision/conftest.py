"""Tiny LLaVAs with towers of each kind that can be made cheaper."""

import pytest
import torch
from transformers import Dinov2Config, Dinov2WithRegistersConfig, SiglipVisionConfig

from tests.support import tiny_llava as tiny

SIZES = {"hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 2}
SIZES |= {"image_size": tiny.SIZE, "patch_size": tiny.PATCH}
#: Each tower's config, and how many tokens it has before its patches.
TOWERS = {
    "clip": (tiny.vision_config(), 1),
    "siglip": (SiglipVisionConfig(**SIZES, intermediate_size=48), 0),
    "dinov2": (Dinov2Config(**SIZES, mlp_ratio=2, layerscale_value=0.7), 1),
    "registers": (Dinov2WithRegistersConfig(**SIZES, mlp_ratio=2, num_register_tokens=2), 3),
}


def pixels(count, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, tiny.SIZE, tiny.SIZE, generator=generator).to(dtype)


@pytest.fixture(params=TOWERS)
def kind(request):
    return request.param


@pytest.fixture
def model(kind, device):
    strategy = "full" if TOWERS[kind][1] == 0 else "default"
    return tiny.llava(vision=TOWERS[kind][0], strategy=strategy).to(device)


@pytest.fixture
def tower(model):
    return model.model.vision_tower


@pytest.fixture
def leading(kind):
    return TOWERS[kind][1]


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield

"""A tiny LLaVA, its processor, a CLIP that fits it, and prompts."""

import copy

import pytest
import torch

from tests.support import tiny_llava as tiny


@pytest.fixture(scope="session")
def weights(device):
    return tiny.llava().to(device)


@pytest.fixture
def model(weights):
    """A model of one's own for each test."""
    return copy.deepcopy(weights)


@pytest.fixture(scope="session")
def processor():
    return tiny.processor()


@pytest.fixture(scope="session")
def clip(device):
    return tiny.clip().to(device)


@pytest.fixture(scope="session")
def ragged(processor, device):
    """Three rows with 1, 2 and 1 images, left-padded."""
    return tiny.inputs(
        processor,
        ["what color is the big red cat ?", "is the left image like the other one ?", "how many dogs ?"],
        [1, 2, 1],
        device,
    )


@pytest.fixture(scope="session")
def mixed(processor, device):
    """An image row, a text-only row, and a row with two images."""
    return tiny.inputs(
        processor,
        ["where is the cat ?", "tell me about the big blue dog and the cat", "how many dogs ?"],
        [1, 0, 2],
        device,
    )


@pytest.fixture(scope="session")
def single(processor, device):
    return tiny.inputs(processor, ["what color is the cat ?"], [1], device)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)

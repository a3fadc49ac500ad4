"""One tiny model of each family, made once."""

import pytest
import torch

from tests.support.families import made


@pytest.fixture
def model(case):
    """The family's model; a test must leave it as it found it."""
    yield made(case)
    assert "generate" not in made(case).__dict__


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)

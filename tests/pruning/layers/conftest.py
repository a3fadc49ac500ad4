"""The model of a case, checked to be left as it was."""

import pytest

from tests.support.deep_models import made


def hooks(model):
    before = [len(module._forward_pre_hooks) for module in model.modules()]
    return before, [len(module._forward_hooks) for module in (model, model.get_decoder())]


@pytest.fixture
def model(case):
    """The case's model; a test must leave it as it found it."""
    model = made(case)
    found = hooks(model)
    yield model
    assert "generate" not in model.__dict__
    assert hooks(model) == found

"""transformers' check of a model's config for settings of generation: quick, and as strict as it is."""

import copy
import json

import pytest

from tests.support import tiny_llava as tiny
from vlprune import Random, attach
from vlprune.pruning.generation_check import NAME, quick_generation_check


@pytest.fixture
def model():
    return tiny.llava(layers=1)


@pytest.fixture
def inputs():
    return tiny.inputs(tiny.processor(), ["what color is the cat ?"], [1], "cpu")


def test_transformers_is_not_asked(model, inputs, monkeypatch):
    asked = []
    monkeypatch.setattr(type(model.config), NAME, lambda config: asked.append(config) or {})
    expected = model.generate(**inputs, max_new_tokens=2)
    assert len(asked) == 1
    with quick_generation_check(model):
        assert (model.generate(**inputs, max_new_tokens=2) == expected).all()
    with attach(model, Random(keep=4)):
        model.generate(**inputs, max_new_tokens=2)
    assert len(asked) == 1


@pytest.mark.parametrize("name", ["top_k", "max_length"])
def test_a_setting_is_refused_as_ever(model, inputs, name):
    setattr(model.config, name, 7)
    with attach(model, Random(keep=4)):
        with pytest.raises(ValueError, match=f"{name}.*not supported"):
            model.generate(**inputs, max_new_tokens=2)
        delattr(model.config, name)
        model.generate(**inputs, max_new_tokens=2)


def test_nothing_is_left_on_model_or_config(model, inputs):
    config, attributes = copy.deepcopy(model.config.__dict__), set(model.__dict__)
    with quick_generation_check(model):
        with quick_generation_check(model):
            model.generate(**inputs, max_new_tokens=1)
        assert NAME not in model.config.__dict__
        json.dumps(model.config.to_dict())
    with pytest.raises(ZeroDivisionError), quick_generation_check(model):
        raise ZeroDivisionError
    assert set(model.__dict__) == attributes
    assert model.config.__dict__.keys() == config.keys()


def test_a_model_without_the_check():
    class Plain:
        config = object()

    with quick_generation_check(Plain()):
        pass

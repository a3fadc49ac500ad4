"""The examples in the documents run as they stand."""

import re
from pathlib import Path

import pytest
import torch
from transformers import VipLlavaConfig, VipLlavaForConditionalGeneration

import vlprune.methods
import vlprune.models.base
from tests.support import tiny_llava as tiny
from vlprune import DppOnly, attach, get_method

DOCS = Path(__file__).parents[2] / "docs"
GREEDY = {"do_sample": False, "max_new_tokens": 6}


def example(name):
    """The names that the first Python block of a document defines."""
    code = re.search(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.S).group(1)
    assert len(code.splitlines()) < 40
    names = {"__name__": "example"}
    exec(compile(code, name, "exec"), names)
    return names


def test_adding_a_method(monkeypatch, model, processor, ragged):
    monkeypatch.setattr(vlprune.methods, "_METHODS", dict(vlprune.methods._METHODS))
    example("adding-a-method.md")
    with attach(model, get_method("top_relevance", keep=9), processor=processor) as pruner:
        model.generate(**ragged, **GREEDY)
        for record in pruner.records:
            assert sorted(record.relevance.topk(9).indices.tolist()) == record.kept.tolist()
    with attach(model, get_method("top_relevance", keep=9, every=4), processor=processor) as pruner:
        model.generate(**ragged, **GREEDY)
        assert set(pruner.last.kept.tolist()) == set(range(0, 36, 4))


@pytest.fixture
def vip(device):
    layers = [-2, -1]
    config = VipLlavaConfig(
        vision_config=tiny.vision_config(),
        text_config=tiny.text_config(),
        image_token_id=tiny.IMAGE,
        vision_feature_layers=layers,
    )
    model = tiny.loud(VipLlavaForConditionalGeneration(config), seed=2).to(device)
    model.generation_config.update(pad_token_id=0, eos_token_id=tiny.VOCAB - 1)
    return model


def test_adding_a_model(monkeypatch, vip, ragged):
    monkeypatch.setattr(vlprune.models.base, "FAMILIES", list(vlprune.models.base.FAMILIES))
    with pytest.warns(UserWarning, match="VipLlavaForConditionalGeneration has no family of its own"):
        attach(vip, DppOnly(keep=9)).detach()
    example("adding-a-model.md")
    plain = vip.generate(**ragged, **GREEDY)
    with attach(vip, DppOnly(keep=1.0)):
        for _ in range(2):  # encoded, then from the cache
            assert torch.equal(vip.generate(**ragged, **GREEDY), plain)
    with attach(vip, DppOnly(keep=9)) as pruner:
        out = vip.generate(**ragged, **GREEDY)
    assert not torch.equal(out, plain)
    assert [record.after for record in pruner.records] == [9] * 4

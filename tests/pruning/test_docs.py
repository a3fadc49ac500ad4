"""The examples in the documents run as they stand."""

import re
from pathlib import Path

import pytest
import torch
from transformers import VipLlavaConfig, VipLlavaForConditionalGeneration

from tests.support import tiny_llava as tiny
from tests.support.registries import isolated_registries
from vlprune import DppOnly, attach, get_method

DOCS = Path(__file__).parents[2] / "docs"
GREEDY = {"do_sample": False, "max_new_tokens": 6}


def example(name):
    """Run the Python blocks of a document, one after another."""
    names = {"__name__": "example"}
    for code in re.findall(r"```python\n(.*?)```", (DOCS / name).read_text(encoding="utf-8"), re.S):
        assert len(code.splitlines()) < 40
        exec(compile(code, name, "exec"), names)


@pytest.fixture(autouse=True)
def _isolated():
    with isolated_registries():
        yield


def test_adding_a_method(model, processor, ragged):
    example("adding-a-method.md")
    with attach(model, get_method("top_relevance", keep=9), processor=processor) as pruner:
        model.generate(**ragged, **GREEDY)
        for record in pruner.records:
            assert sorted(record.ranking.topk(9).indices.tolist()) == record.kept.tolist()
    with attach(model, get_method("top_relevance", keep=9, every=4), processor=processor) as pruner:
        model.generate(**ragged, **GREEDY)
        assert set(pruner.last.kept.tolist()) == set(range(0, 36, 4))
    for name, like in (("far_apart", "divprune"), ("half_way", "fastv")):
        settings = {"layer": len(model.model.language_model.layers) // 2} if like == "fastv" else {}
        kept = []
        for method in (get_method(name, keep=9), get_method(like, keep=9, **settings)):
            with attach(model, method, processor=processor) as pruner:
                model.generate(**ragged, **GREEDY)
                kept.append([record.kept.tolist() for record in pruner.records])
        assert kept[0] == kept[1]


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


def test_adding_a_model(vip, ragged):
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

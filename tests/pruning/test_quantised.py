"""Quantised models are pruned as others are. Each test needs a package that is not installed by default."""

import importlib.util

import pytest
import torch
from transformers import AutoModelForImageTextToText, AutoProcessor, BitsAndBytesConfig

from vlprune import FastV, Script, VisionZip, attach, pocket

GREEDY = {"do_sample": False, "max_new_tokens": 4}
METHODS = [Script(keep=9), VisionZip(keep=9), FastV(keep=9)]


def needs(package):
    return pytest.mark.skipif(importlib.util.find_spec(package) is None, reason=f"needs {package}")


def check_pruned(model, processor, inputs, method):
    """It drops what it is to drop; keeping all tokens is the quantised model itself."""
    plain = model.generate(**inputs, **GREEDY)
    with attach(model, type(method)(keep=1.0), processor=processor):
        assert torch.equal(model.generate(**inputs, **GREEDY), plain)
    with attach(model, method, processor=processor) as pruner, torch.no_grad():
        first = model.generate(**inputs, **GREEDY)
        assert torch.equal(model.generate(**inputs, **GREEDY), first)
        assert model(**inputs).logits.isfinite().all()
        assert pruner.last.kept.numel() == 9 or pruner.last.after == 9
    assert torch.equal(model.generate(**inputs, **GREEDY), plain)


@needs("torchao")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_torchao_int8(model, processor, single, method):
    from torchao.quantization import Int8WeightOnlyConfig, quantize_

    quantize_(model, Int8WeightOnlyConfig())
    check_pruned(model, processor, single, method)


@needs("bitsandbytes")
@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_bitsandbytes_int8(model, processor, single, tmp_path, method):
    model.save_pretrained(tmp_path)
    quantised = AutoModelForImageTextToText.from_pretrained(
        tmp_path, quantization_config=BitsAndBytesConfig(load_in_8bit=True), device_map={"": model.device}
    ).eval()
    assert any("bitsandbytes" in type(module).__module__ for module in quantised.modules())
    check_pruned(quantised, processor, single, method)


@needs("bitsandbytes")
def test_bitsandbytes_nf4(device):
    """The pocket model: on a CPU the layers of the tiny one are too narrow for it."""
    folder = pocket.path()
    settings = BitsAndBytesConfig(load_in_4bit=True, bnb_4bit_quant_type="nf4")
    model = AutoModelForImageTextToText.from_pretrained(folder, quantization_config=settings, device_map={"": device})
    processor = AutoProcessor.from_pretrained(folder)
    image = torch.zeros(3, 192, 192, dtype=torch.uint8)
    inputs = processor(images=image, text="USER: <image> is there a red star? ASSISTANT:", return_tensors="pt")
    check_pruned(model.eval(), processor, inputs.to(device), Script(keep=9))

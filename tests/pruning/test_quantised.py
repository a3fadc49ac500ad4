"""Quantised models are pruned as others are. Each test needs a package that is not installed by default."""

import importlib.util

import pytest
import torch
from transformers import (
    AutoModelForImageTextToText,
    AutoProcessor,
    AwqConfig,
    BitsAndBytesConfig,
    GPTQConfig,
    LlavaForConditionalGeneration,
)

from tests.support import llava_reference as reference
from tests.support import tiny_llava as tiny
from vlprune import FastV, Script, VisionZip, attach, pocket

GREEDY = {"do_sample": False, "max_new_tokens": 4}
METHODS = [Script(keep=9), VisionZip(keep=9), FastV(keep=9)]


def needs(*packages):
    missing = [package for package in packages if importlib.util.find_spec(package) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {' and '.join(missing)}")


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


def check_answers(model, processor, batch):
    """The kept tokens are answered from as the quantised model answers a prompt with no others."""
    steps = GREEDY["max_new_tokens"]
    expected = reference.padded(reference.answers(model, batch, 9, steps), steps)
    assert not torch.equal(reference.new_tokens(model.generate(**batch, **GREEDY), batch, steps), expected)
    with attach(model, Script(keep=9), processor=processor):
        assert torch.equal(reference.new_tokens(model.generate(**batch, **GREEDY), batch, steps), expected)


def wider():
    """The tiny LLaVA with widths that are multiples of 32, as GPTQ's packing wants them."""
    config = tiny.llava().config
    config.text_config.num_key_value_heads = config.text_config.num_attention_heads
    config.text_config.intermediate_size = 64
    model = tiny.loud(LlavaForConditionalGeneration._from_config(config), seed=0)
    model.generation_config.eos_token_id = tiny.VOCAB - 1
    return model


def check_packed(model, kind):
    """All linear layers of the language model are of this kind."""
    language = model.model.language_model
    assert not any(isinstance(module, torch.nn.Linear) for module in language.modules())
    assert sum(type(module).__name__ == kind for module in language.modules()) == 7 * len(language.layers)


@pytest.fixture(scope="module")
def gptq(processor, device, tmp_path_factory):
    """Calibrated on a few words, saved, and loaded as a GPTQ checkpoint is."""
    folder = tmp_path_factory.mktemp("gptq")
    model = wider()
    model.save_pretrained(folder / "plain")
    model.config.use_cache = True  # optimum reads it, and LLaVA's config has none
    settings = GPTQConfig(
        bits=4,
        group_size=16,
        tokenizer=processor.tokenizer,
        dataset=["USER : what color is the cat ? ASSISTANT : it is red and blue ."] * 8,
        block_name_to_quantize="model.language_model.layers",
        model_seqlen=64,
        backend="torch",
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GPTQMODEL_DISABLE_PACK_EXT", "1")  # or packing compiles a C++ extension
        model = AutoModelForImageTextToText.from_pretrained(
            folder / "plain", config=model.config, quantization_config=settings, device_map={"": device}
        )
    model.config.quantization_config.backend = "torch"  # optimum forgets it, and the default compiles a kernel
    model.save_pretrained(folder / "packed")
    return AutoModelForImageTextToText.from_pretrained(folder / "packed", device_map={"": device}).eval()


def pack_awq(linear, group=16):
    """Four bits with a scale and a zero for each group of inputs, in AWQ's layout."""
    from gptqmodel.nn_modules.qlinear.torch_awq import AwqTorchLinear

    width, height = linear.in_features, linear.out_features
    packed = AwqTorchLinear(4, group, sym=False, desc_act=False, in_features=width, out_features=height)
    weight = linear.weight.data.view(height, -1, group)
    least, most = weight.amin(-1).clamp(max=0), weight.amax(-1).clamp(min=0)
    scale = ((most - least) / 15).half().float()
    zero = (-least / scale).round().clamp(0, 15)
    steps = (weight / scale[..., None] + zero[..., None]).round().clamp(0, 15)
    linear.weight.data = ((steps - zero[..., None]) * scale[..., None]).view(height, width)
    packed.pack(linear, scale, zero)
    return packed


@pytest.fixture(scope="module")
def awq(device, tmp_path_factory):
    """Packed here, as transformers does not quantise by AWQ, and loaded as an AWQ checkpoint is."""
    folder = tmp_path_factory.mktemp("awq")
    model = wider()
    for name, module in list(model.model.language_model.named_modules()):
        if isinstance(module, torch.nn.Linear):
            model.model.language_model.set_submodule(name, pack_awq(module))
    plain = ["model.vision_tower", "model.multi_modal_projector", "lm_head"]
    model.config.quantization_config = AwqConfig(
        bits=4, group_size=16, backend="torch_awq", modules_to_not_convert=plain
    )
    model.save_pretrained(folder)
    return AutoModelForImageTextToText.from_pretrained(folder, device_map={"": device}).eval()


PACKED = [
    pytest.param("gptq", "TorchLinear", marks=needs("gptqmodel", "optimum")),
    pytest.param("awq", "AwqTorchLinear", marks=needs("gptqmodel", "accelerate")),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize(("packed", "kind"), PACKED)
def test_four_bits(request, packed, kind, processor, single, method):
    model = request.getfixturevalue(packed)
    check_packed(model, kind)
    check_pruned(model, processor, single, method)


@pytest.mark.parametrize("batch", ["single", "ragged"])
@pytest.mark.parametrize(("packed", "kind"), PACKED)
def test_four_bits_equal_the_reference(request, packed, kind, processor, batch):
    check_answers(request.getfixturevalue(packed), processor, request.getfixturevalue(batch))

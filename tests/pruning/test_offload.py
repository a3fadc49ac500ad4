"""Models whose weights accelerate keeps on the CPU or on disk until a module runs, spread by a device map."""

import pytest
import torch
from transformers import AutoModelForImageTextToText

from tests.support import families
from vlprune import FastV, Script, ScriptPlus, VisionZip, attach
from vlprune.errors import UnsupportedModel

accelerate = pytest.importorskip("accelerate")
GREEDY = {"do_sample": False, "max_new_tokens": 4}
TOWER, PROJECTOR, LLM = "model.vision_tower", "model.multi_modal_projector", "model.language_model"
#: Device maps over the places that every machine has.
MAPS = {
    "LLM on disk": {TOWER: "cpu", PROJECTOR: "cpu", LLM: "disk"},
    "tower on disk": {
        TOWER: "disk",
        PROJECTOR: "disk",
        LLM: "cpu",
    },
    "layers on both": {
        TOWER: "cpu",
        PROJECTOR: "disk",
        "model.language_model.embed_tokens": "disk",
        "model.language_model.layers.0": "cpu",
        "model.language_model.layers.1": "disk",
        "model.language_model.norm": "cpu",
        "model.language_model.rotary_emb": "cpu",
    },
}


@pytest.fixture
def offloaded(model, tmp_path):
    """From a device map to the model, loaded from its files by that map."""
    model.save_pretrained(tmp_path / "model")

    def load(device_map):
        return AutoModelForImageTextToText.from_pretrained(
            tmp_path / "model", device_map={**device_map, "lm_head": "cpu"}, offload_folder=str(tmp_path / "offload")
        ).eval()

    return load


@pytest.mark.parametrize("method", [Script(keep=9), ScriptPlus(keep=9), VisionZip(keep=9)], ids=lambda one: one.name)
@pytest.mark.parametrize("places", MAPS)
def test_weights_on_disk(model, offloaded, processor, ragged, places, method):
    inputs = {name: value.cpu() for name, value in ragged.items()}
    model = model.cpu()
    with attach(model, method, processor=processor), torch.no_grad():
        expected = model.generate(**inputs, **GREEDY), model(**inputs).logits
    spread = offloaded(MAPS[places])
    assert any(weight.device.type == "meta" for weight in spread.parameters())
    with attach(spread, method, processor=processor) as pruner, torch.no_grad():
        found = spread.generate(**inputs, **GREEDY), spread(**inputs).logits
        assert [record.after for record in pruner.records] == [9] * 4
        assert len(pruner.select(inputs)[0].kept) == 9
        assert len(pruner.ask_many(torch.zeros(3, 48, 48, dtype=torch.uint8), ["how many dogs ?"] * 2, **GREEDY)) == 2
    for one, other in zip(found, expected):
        torch.testing.assert_close(one, other)


def test_a_dual_encoder_beside_an_offloaded_model(model, offloaded, processor, clip, single):
    inputs = {name: value.cpu() for name, value in single.items()}
    found = []
    for one in (model.cpu(), offloaded(MAPS["LLM on disk"])):
        with attach(one, Script(keep=9), processor=processor, dual_encoder=clip.cpu()) as pruner:
            one.generate(**inputs, **GREEDY)
            found.append(pruner.last.kept)
    assert torch.equal(*found)


def test_every_layer_on_the_cpu_until_it_runs(model, processor, single):
    """`cpu_offload`: no weight is at its place but while its module runs."""
    with attach(model, Script(keep=9), processor=processor):
        expected = model.generate(**single, **GREEDY)
    accelerate.cpu_offload(model, model.device)
    with attach(model, Script(keep=9), processor=processor) as pruner:
        assert torch.equal(model.generate(**single, **GREEDY), expected)
        assert pruner.last.after == 9


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl", "internvl", "llava_onevision"])
def test_other_families(name):
    """Where positions and tiles are worked out from tensors, these lie where the prompt does."""
    (case,) = [case for case in families.CASES if case.name == name]
    model, inputs = case.model(), case.batch(case.samples("single"))
    with attach(model, Script(keep=3)):
        expected = model.generate(**inputs, **GREEDY)
    accelerate.cpu_offload(model, torch.device("cpu"))
    with attach(model, Script(keep=3)) as pruner:
        assert torch.equal(model.generate(**inputs, **GREEDY), expected)
        assert pruner.last.after == 3


def test_methods_inside_the_llm(model, offloaded, single):
    """They work where all layers lie in one place, and refuse layers in several."""
    inputs, model = {name: value.cpu() for name, value in single.items()}, model.cpu()
    with attach(model, FastV(keep=9)):
        expected = model.generate(**inputs, **GREEDY)
    spread = offloaded(MAPS["LLM on disk"])
    with attach(spread, FastV(keep=9)):
        assert torch.equal(spread.generate(**inputs, **GREEDY), expected)
    with pytest.raises(UnsupportedModel, match="is a LlavaForConditionalGeneration spread over devices: tokens can"):
        attach(offloaded(MAPS["layers on both"]), FastV(keep=9))

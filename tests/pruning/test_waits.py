"""While the vision tower runs, the host is to go on: what it does up to the LLM must not wait for the device."""

import pytest
import torch

from tests.support import tiny_llava as tiny
from tests.support.families.llava import LlavaNext, LlavaOnevision
from tests.support.pretended_device import PLACE, Device, moved
from vlprune import UniformGrid, attach
from vlprune.models import family_of
from vlprune.pruning.probe import merge_images

#: transformers counts an image's tokens and copies the number to the device, where nobody reads it; and we lay out
#: the tower's states, by the same function.
PACKING = ("in pack_image_features",)
#: How many newlines stay depends on what was chosen.
NEWLINES = "in apply"


class Watched:
    """The lines that wait for the device behind the tower, in the second of two calls."""

    def __init__(self, model, call):
        self.lines = []
        for _ in range(2):  # the first copies what stays there
            device = Device()
            handle = model.base_model.vision_tower.register_forward_hook(lambda *_, held=device: held.waits.clear())
            with torch.no_grad(), device:
                self.result = call()
            handle.remove()
            self.lines = [line for _, line in device.waits]


@pytest.fixture
def one(single):
    return moved({name: value.cpu() for name, value in single.items()})


def merging(model, inputs):
    inputs = dict(inputs)
    ids, _ = inputs.pop("input_ids"), inputs.pop("attention_mask")
    return lambda: merge_images(model, family_of(model), ids, inputs)


def test_the_plain_model_waits(one):
    """What the other tests would say if nothing were done."""
    model = moved(tiny.llava())
    lines = Watched(model, lambda: model.base_model(**one)).lines
    assert any("torch_compilable_check" in line for line in lines)


def test_a_clone_in_a_folder_called_vlprune():
    """A line of torch in the clone's own environment is none of vlprune's."""
    value = moved({"value": torch.ones(1)})["value"]
    with Device() as device:
        exec(compile("value.item()", "/home/me/vlprune/.venv/lib/torch/x.py", "exec"), {"value": value})
    assert [line for _, line in device.waits] == ["elsewhere"]


def test_merging(one):
    model = moved(tiny.llava())
    seen = Watched(model, merging(model, one))
    assert seen.lines == []
    assert seen.result.embeds.device == PLACE


def test_from_the_tower_to_generate(one):
    model = moved(tiny.llava())
    with attach(model, UniformGrid(keep=4), cache_bytes=0):
        lines = Watched(model, lambda: model.generate(**one, do_sample=False, max_new_tokens=1)).lines
    assert [line for line in lines if not line.startswith("transformers/generation")] == []


@pytest.mark.parametrize("case", [LlavaNext(), LlavaOnevision()], ids=lambda case: case.name)
def test_images_in_tiles(case):
    model, batch = moved(case.model()), moved(case.batch([case.samples("ragged")[0]]))
    with attach(model, UniformGrid(keep=4), cache_bytes=0):
        lines = Watched(model, lambda: model.generate(**batch, do_sample=False, max_new_tokens=1)).lines
    ours = [line for line in lines if not line.startswith("transformers/generation")]
    assert [line for line in ours if not any(part in line for part in PACKING)] == [
        line for line in ours if NEWLINES in line
    ]
    assert sum(NEWLINES in line for line in ours) == 1


def test_the_same_answer_as_on_the_cpu(single):
    model, inputs = tiny.llava(), {name: value.cpu() for name, value in single.items()}
    with attach(model, UniformGrid(keep=4)):
        expected = model.generate(**inputs, do_sample=False, max_new_tokens=3)
    model = moved(model)
    with attach(model, UniformGrid(keep=4), cache_bytes=0), Device():
        found = model.generate(**moved(inputs), do_sample=False, max_new_tokens=3)
    assert torch.equal(found.values, expected)


def test_placeholders_are_still_counted(model, single):
    short = {**single, "input_ids": single["input_ids"][:, 3:], "attention_mask": single["attention_mask"][:, 3:]}
    with attach(model, UniformGrid(keep=4)), pytest.raises(ValueError, match="do not match, tokens: 35, features: "):
        model.generate(**short)
    assert "get_placeholder_mask" not in model.base_model.__dict__

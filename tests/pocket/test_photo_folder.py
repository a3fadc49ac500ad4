"""The photo model's folder: near to what was trained, loaded by its path or by "photo", answering when pruned."""

import json

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from tests.support.photo_parts import tiny_network, write_photographs, write_tower
from vlprune import attach
from vlprune.errors import UserError
from vlprune.evaluation.load_model import load_model
from vlprune.methods import get_method
from vlprune.models import family_of
from vlprune.pocket import photo_folder
from vlprune.pocket.photo_folder import WEIGHTS, load_folder, pack_8_bits, unpack_8_bits, write_folder
from vlprune.pocket.train_photo import save_model
from vlprune.pruning.dual_encoder import DualEncoder


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    parts = write_photographs(tmp_path_factory.mktemp("parts"))
    network, processor = tiny_network(parts, write_tower(parts / "tower"), depth=2)
    folder = tmp_path_factory.mktemp("trained")
    save_model(network, folder)
    processor.save_pretrained(folder)
    (folder / "checkpoint.json").write_text("{}")
    return folder


@pytest.fixture(scope="module")
def folder(trained, tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "photo"
    size = write_folder(trained, folder)
    assert size == (folder / WEIGHTS).stat().st_size
    return folder


def question_about(processor, text):
    message = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": text}]}]
    prompt = processor.apply_chat_template(message, add_generation_prompt=True)
    return processor(images=Image.effect_noise((200, 100), 60).convert("RGB"), text=prompt, return_tensors="pt")


def test_a_matrix_is_off_by_at_most_half_a_step():
    value = torch.randn(50, 30, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 2, 50)[:, None]
    value[7] = 0
    packed = pack_8_bits({"matrix": value, "norm": value[:, 0], "multi_modal_projector.linear_1.weight": value})
    assert packed["matrix"].dtype == torch.int8
    assert packed["multi_modal_projector.linear_1.weight"].dtype == torch.float16
    assert packed["norm"].dtype == torch.float16
    back = unpack_8_bits(packed)
    step = packed["matrix.scale"].float()
    assert ((back["matrix"] - value).abs() <= 0.51 * step + 0.001 * value.abs()).all()
    assert (back["matrix"][7] == 0).all()


@torch.no_grad()
def test_the_folder_gives_the_trained_model_in_8_bits(trained, folder):
    from transformers import AutoProcessor, LlavaForConditionalGeneration

    own = LlavaForConditionalGeneration.from_pretrained(trained).eval()
    model, processor, (clip, words) = load_folder(folder)
    inputs = question_about(AutoProcessor.from_pretrained(trained), "is there a dog in the picture?")
    assert torch.equal(inputs["input_ids"], question_about(processor, "is there a dog in the picture?")["input_ids"])
    want, got = own(**inputs).logits[0, -1], model(**inputs).logits[0, -1]
    assert (want - got).norm() < 0.05 * want.norm()
    whole, packed = ({p.name for p in f.iterdir()} for f in (trained, folder))
    assert packed == (whole - {"model.safetensors", "checkpoint.json"}) | {WEIGHTS}
    assert clip.config.text_config.vocab_size == len(words)


def test_load_model_takes_its_path_and_answers_with_few_tokens(folder):
    loaded = load_model(str(folder), None, "cpu")
    inputs = question_about(loaded.processor, "is there a dog in the picture?")
    method = get_method("cdpruner", keep=16)
    with attach(loaded.model, method, processor=loaded.processor, dual_encoder=loaded.clip) as pruner:
        answer = loaded.model.generate(**inputs, max_new_tokens=3, do_sample=False)
        assert (pruner.last.before, pruner.last.after) == (576, 16)
    assert answer.shape[1] <= inputs["input_ids"].shape[1] + 3


@torch.no_grad()
def test_states_of_several_layers_are_what_the_projector_reads(folder):
    loaded = load_model(str(folder), None, "cpu")
    pixels = {"pixel_values": question_about(loaded.processor, "is there a dog in the picture?")["pixel_values"]}
    family = family_of(loaded.model)
    output = loaded.model.get_image_features(**pixels, output_hidden_states=True, return_dict=True)
    states = family.tower_states(loaded.model, family.modalities(loaded.model)[0], output, pixels)
    torch.testing.assert_close(family.project(loaded.model, states)[0], output.pooler_output[0])
    clip, tokenizer = loaded.clip
    image = DualEncoder(clip, tokenizer, loaded.model).image(states)
    last = output.hidden_states[loaded.model.config.vision_feature_layer[-1]][:, 1:]
    torch.testing.assert_close(image, clip.visual_projection(clip.vision_model.post_layernorm(last)))


@pytest.mark.parametrize("name", ["trim", "visionzip"])
def test_methods_that_merge_before_the_projector_run_on_several_layers(folder, name):
    loaded = load_model(str(folder), None, "cpu")
    inputs = question_about(loaded.processor, "is there a dog in the picture?")
    with attach(
        loaded.model, get_method(name, keep=16), processor=loaded.processor, dual_encoder=loaded.clip
    ) as pruner:
        loaded.model.generate(**inputs, max_new_tokens=1, do_sample=False)
        assert pruner.last.after == 16


def test_photo_is_the_checkout_s_folder(folder, monkeypatch):
    monkeypatch.setattr(photo_folder, "__file__", str(folder.parents[1] / "vlprune" / "pocket" / "photo_folder.py"))
    (folder.parents[1] / "models").symlink_to(folder.parent)
    monkeypatch.chdir(folder)  # no folder of that name lies here
    assert load_model("photo", None, "cpu").name == "photo"


def test_photo_without_a_checkout_is_said_in_one_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr(photo_folder, "__file__", str(tmp_path / "vlprune" / "pocket" / "photo_folder.py"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="--model photo: there are no weights in models/photo"):
        load_model("photo", None, "cpu")


def test_pickles_and_weights_that_do_not_fit_are_refused(trained, folder, tmp_path):
    pickled = tmp_path / "pickled"
    pickled.mkdir()
    for name in ("config.json", "processor_config.json", "tokenizer.json", "tokenizer_config.json"):
        (pickled / name).write_bytes((trained / name).read_bytes())
    torch.save({"weight": torch.zeros(1)}, pickled / "pytorch_model.bin")
    with pytest.raises(UserError, match=f"--model {pickled}: its weights are in pytorch_model.bin"):
        load_model(str(pickled), None, "cpu")
    broken = tmp_path / "broken"
    write_folder(trained, broken)
    weights = load_file(broken / WEIGHTS)
    save_file({n: v for n, v in weights.items() if "multi_modal_projector" not in n}, broken / WEIGHTS)
    with pytest.raises(UserError, match=r"does not fit config\.json"):
        load_model(str(broken), None, "cpu")
    with pytest.raises(FileNotFoundError, match=r"there is no model\.safetensors"):
        write_folder(tmp_path / "nothing", tmp_path / "out")
    assert json.loads((broken / "config.json").read_text())["model_type"] == "llava"


def test_no_place_of_the_training_machine_is_told(trained, folder):
    assert "_name_or_path" in (trained / "config.json").read_text()
    for settings in folder.rglob("*.json"):
        assert "_name_or_path" not in settings.read_text()

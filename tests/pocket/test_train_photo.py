"""Training the photo model: an interrupted run ends as an uninterrupted one, and what it writes is a plain LLaVA."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoProcessor, CLIPModel, LlavaForConditionalGeneration

from tests.support.photo_parts import tiny_words, write_llm, write_photographs, write_tower
from vlprune import Script, attach
from vlprune.evaluation.load_model import load_model, with_loaded_clip
from vlprune.pocket import train_photo


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = write_photographs(tmp_path_factory.mktemp("parts"))
    write_tower(folder / "tower")
    write_llm(folder / "llm", tiny_words(folder))
    return folder


def arguments(folder, out, *more):
    options = f"--tower {folder}/tower --tower-layers 1,3 --llm {folder}/llm --depth 2 --photos {folder}/photos"
    options += f" --captions {folder}/text/captions.txt --out {out} --steps 3 --align-steps 1 --hint-steps 1"
    options += " --patterns 0.5 --batch 2 --validation-scenes 2 --validate-every 9 --workers 0 --checkpoint-seconds 0"
    return [*options.split(), *more]


def test_a_stopped_run_goes_on_and_ends_the_same(folder, tmp_path, monkeypatch, capsys):
    train_photo.main(arguments(folder, tmp_path / "whole"))
    assert "step 3: answers" in capsys.readouterr().out
    save = train_photo.save_checkpoint

    def save_and_stop(*given):
        save(*given)
        raise KeyboardInterrupt

    monkeypatch.setattr(train_photo, "save_checkpoint", save_and_stop)
    for step in (1, 2, 3):
        with pytest.raises(KeyboardInterrupt):
            train_photo.main(arguments(folder, tmp_path / "parts"))
        assert json.loads((tmp_path / "parts" / "checkpoint.json").read_text())["step"] == step
    whole, parts = (load_file(tmp_path / name / "checkpoint.safetensors") for name in ("whole", "parts"))
    assert whole.keys() == parts.keys()
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], msg=name)
    _check_output(tmp_path / "whole", folder)
    _check_dual_encoder(tmp_path / "whole")


def _check_dual_encoder(out):
    """The command line finds the text tower that was trained beside the model, and relevance comes from it."""
    loaded = with_loaded_clip(load_model(str(out), None, "cpu"))
    image = np.random.default_rng(0).integers(0, 256, (56, 56, 3), dtype=np.uint8)
    inputs = loaded.processor(images=image, text="USER: <image> is there a dog ? ASSISTANT:", return_tensors="pt")
    with attach(
        loaded.model, Script(keep=4, relevance="clip"), processor=loaded.processor, dual_encoder=loaded.clip
    ) as p:
        loaded.model.generate(**inputs, max_new_tokens=1)
    assert p.last.after == 4


def test_a_tower_with_registers_is_refused_before_a_picture_is_drawn(folder, tmp_path, monkeypatch, capsys):
    """transformers' LLaVA drops the first token at most: it would read the registers as patches."""
    write_tower(tmp_path / "registers", registers=4)
    monkeypatch.setattr(train_photo, "TrainingSet", None)
    with pytest.raises(SystemExit) as end:
        train_photo.main(arguments(folder, tmp_path / "out", "--tower", str(tmp_path / "registers")))
    assert end.value.code == 2
    assert "registers puts 4 register tokens between class token and patches" in capsys.readouterr().err
    write_tower(tmp_path / "none", registers=0)  # and without any it gets as far as the pictures
    with pytest.raises(TypeError):
        train_photo.main(arguments(folder, tmp_path / "out", "--tower", str(tmp_path / "none")))


def _check_output(out, folder):
    model = LlavaForConditionalGeneration.from_pretrained(out)
    processor, clip = AutoProcessor.from_pretrained(out), CLIPModel.from_pretrained(out / "clip")
    assert model.config.vision_feature_layer == [1, 3]
    assert (clip.config.tower_type, clip.config.relevance_sign) == ("dinov2", 1)
    assert len(processor.tokenizer) == model.config.text_config.vocab_size
    tower = load_file(folder / "tower" / "model.safetensors")
    name = "encoder.layer.0.attention.attention.query.weight"
    own = model.model.vision_tower.state_dict()
    assert any(torch.equal(tower[name], value) for value in own.values() if value.shape == tower[name].shape)


def test_the_best_model_is_chosen_by_what_the_targets_are_about():
    share = {"existence": 0.9, "existence inset": 0.6, "read word": 0.2, "read card": 0.4, "colour": 1.0}
    assert train_photo.score(share) == pytest.approx((0.9 + 0.6 + 0.3) / 3)

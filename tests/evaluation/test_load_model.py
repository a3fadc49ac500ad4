"""The type of the weights, and a dual encoder that is only named, which is read once."""

import shutil
from dataclasses import replace

import pytest
import torch

from vlprune.evaluation.load_model import load_model, with_loaded_clip


def test_a_clip_that_is_named_is_loaded(checkpoint, clip):
    loaded = load_model(str(checkpoint), str(clip), "cpu")
    assert loaded.clip == str(clip)
    encoder, tokenizer = with_loaded_clip(loaded).clip
    assert encoder.config.model_type == "clip"
    assert tokenizer("red")["input_ids"]
    assert loaded.clip == str(clip)


def test_a_clip_that_is_there_or_missing_stays(loaded):
    assert with_loaded_clip(loaded) is loaded
    without = replace(loaded, clip=None)
    assert with_loaded_clip(without) is without


@pytest.mark.parametrize(("supported", "wanted"), [(True, torch.bfloat16), (False, torch.float32)])
def test_a_cpu_without_16_bits_computes_in_32(checkpoint, tmp_path, monkeypatch, supported, wanted):
    monkeypatch.setattr(torch.ops.mkldnn, "_is_mkldnn_bf16_supported", lambda: supported)
    assert load_model(str(checkpoint), None, "cpu").model.dtype == torch.float32
    half = load_model(str(checkpoint), None, "cpu", dtype="bfloat16")
    assert half.model.dtype == torch.bfloat16  # as it was asked for
    half.model.save_pretrained(tmp_path)
    half.processor.save_pretrained(tmp_path)
    assert load_model(str(tmp_path), None, "cpu").model.dtype == wanted


def test_a_folder_brings_its_own_clip(checkpoint, clip, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(checkpoint, folder)
    assert load_model(str(folder), None, "cpu").clip is None
    shutil.copytree(clip, folder / "clip")
    assert load_model(str(folder), None, "cpu").clip == str(folder / "clip")
    assert load_model(str(folder), "auto", "cpu").clip == str(folder / "clip")
    assert load_model(str(folder), str(clip), "cpu").clip == str(clip)

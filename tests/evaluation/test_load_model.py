"""A dual encoder that is only named is read once."""

from dataclasses import replace

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

"""What families say of the vision tower, against what its attention computes and what the model makes of its states."""

import inspect

import pytest
import torch
from transformers import AttentionInterface

from tests.support.method_models import EVERY_TOWER
from vlprune.models import Family, family_of, list_families
from vlprune.models.tower_attention import record_call

KINDS = [
    (case, kind) for case in EVERY_TOWER for kind in ("image", "video") if kind == "image" or "video" in case.layouts
]


def spy(module, query, key, value, attention_mask, scaling=None, **kwargs):
    """Attention the obvious way, noted in the module."""
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    weights = (query @ key.mT * scaling).softmax(dim=-1)
    module.__dict__.setdefault("noted", []).append((weights, key))
    return (weights @ value).transpose(1, 2), weights


AttentionInterface.register("spy", spy)


@pytest.fixture(scope="module")
def models():
    found = {}
    for case in EVERY_TOWER:
        found[case.name] = case.model()
        for part in found[case.name].base_model.modules():
            if hasattr(part, "config") and "ision" in type(part).__name__ + type(part.config).__name__:
                part.config._attn_implementation = "spy"
    return found


def test_every_family_that_tells_its_attention_is_here():
    telling = {one.name for one in list_families() if type(one).attention_module is not Family.attention_module}
    assert telling == {case.name for case in EVERY_TOWER}


def seen(case, kind, model):
    """(the family's account of one image or video, the watched module, the encoder's output)."""
    family = family_of(model)
    modality = next(modality for modality in family.modalities(model) if modality.kind == kind)
    sample = case.sample(2, case.image(1) if kind == "image" else case.video(1), 3)
    batch = case.batch([sample])
    names = {"get_image_features": ("pixel_values", "image_sizes", "image_grid_thw", "batch_num_images")}
    names["get_video_features"] = ("pixel_values_videos", "video_grid_thw")
    inputs = {name: batch[name] for name in names[modality.encoder] if name in batch}
    if "pixel_values_images" in batch:
        inputs["pixel_values"] = batch["pixel_values_images"]
    taken = inspect.signature(getattr(model.base_model, modality.encoder)).parameters
    for name in [name for name in inputs if name not in taken]:  # versions name the pixels differently
        inputs[next(other for other in taken if other.startswith("pixel_values"))] = inputs.pop(name)
    module = family.attention_module(model, modality, inputs)
    module.__dict__.pop("noted", None)
    with torch.no_grad(), record_call(module) as call:
        output = getattr(model.base_model, modality.encoder)(**inputs)
        noted = module.__dict__.pop("noted")
        (vision,) = family.read_encoder_output(
            model, modality, output, inputs, [len(v.tokens) for v in sample.visuals], call
        )
    return family, modality, vision, noted, inputs, sample.visuals[0]


@pytest.mark.parametrize(("case", "kind"), KINDS, ids=[f"{case.name}-{kind}" for case, kind in KINDS])
def test_attention_is_what_the_tower_computes(case, kind, models):
    model = models[case.name]
    family, modality, vision, noted, inputs, _ = seen(case, kind, model)
    classed = case.name in ("llava", "llava_next", "llava_next_video", "video_llava", "internvl")
    pieces, keys = [], []
    for weights, key in noted:
        mean = weights.mean(dim=1)
        pieces.append(mean[:, 0, 1:] if classed else mean.mean(dim=1))
        keys.append(key.mean(dim=1)[:, 1:] if classed else key.mean(dim=1))
    flat = case.name.startswith("qwen")  # its tower sees all patches of all images in one line
    received, key = (torch.cat([one[0] if flat else one for one in parts]) for parts in (pieces, keys))
    if flat:
        received = family.restore_patch_order(model, modality, received[:, None], inputs)[:, 0]
        key = family.restore_patch_order(model, modality, key, inputs)
    (attention,) = family.arrange_patches(model, modality, received[..., None], inputs, [vision.shape])
    (key,) = family.arrange_patches(model, modality, key, inputs, [vision.shape])
    torch.testing.assert_close(vision.attention, attention.mean(dim=1), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(
        vision.keys, key.view(vision.shape.n, -1, vision.keys.shape[1]).mean(dim=1), rtol=1e-4, atol=1e-5
    )
    assert (vision.attention > 0).all()


@pytest.mark.parametrize(("case", "kind"), KINDS, ids=[f"{case.name}-{kind}" for case, kind in KINDS])
def test_projected_states_are_the_tokens(case, kind, models):
    """So the states are those of the right layer, in the order of the tokens, and the projector is the right one."""
    model = models[case.name]
    family, _, vision, _, _, visual = seen(case, kind, model)
    with torch.no_grad():
        features, _ = case.encode(model, visual)
        tokens = family.project(model, vision.tower[None])[0]
    expected = features[visual.candidates]
    if (case.name, kind) == ("llava_onevision", "video"):  # pooled after the projector: no states project to its tokens
        assert tokens.shape == expected.shape
        return
    torch.testing.assert_close(tokens, expected, rtol=1e-4, atol=1e-4)


def test_class_tokens_are_one_per_part(models):
    case = EVERY_TOWER[1]
    _, _, vision, _, _, visual = seen(case, "image", models[case.name])
    assert vision.cls.shape == (len(visual.parts), vision.tower.shape[1])

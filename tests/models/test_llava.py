"""LLaVA over vision towers of every kind: real classes, tiny random weights."""

import inspect

import pytest
import torch
from transformers import (
    CLIPVisionConfig,
    Dinov2Config,
    Dinov2WithRegistersConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    PixtralVisionConfig,
    SiglipVisionConfig,
    SwinConfig,
    ViTConfig,
)

from tests.support import tiny_llava
from tests.support.families import reference
from tests.support.families.case import IMAGE, PATCH, TOWER, Case, Token, Visual, llama, noise
from vlprune import AttentionTopK, DppOnly, Script, VisionZip, attach
from vlprune.errors import UnsupportedModel

SIDE, STEPS, KEEP = 5, 4, 7
SIZES = {"hidden_size": TOWER, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
SQUARE = {**SIZES, "image_size": SIDE * PATCH, "patch_size": PATCH}
LARGER = {**SQUARE, "image_size": 11 * PATCH}  # DINOv2 takes images of other sizes than its own
GREEDY = {"do_sample": False, "max_new_tokens": STEPS}


class LlavaOver(Case):
    """A LLaVA over that tower; `leading` of an image's tokens in the prompt come before its patches."""

    model_class = LlavaForConditionalGeneration

    def __init__(self, name, tower, leading=0, strategy="default", grid=(SIDE, SIDE)):
        self.name, self.tower, self.leading, self.strategy, self.grid = name, tower, leading, strategy, grid

    def config(self):
        return LlavaConfig(
            vision_config=self.tower,
            text_config=llama(),
            image_token_index=IMAGE,
            vision_feature_select_strategy=self.strategy,
        )

    def image(self, seed):
        rows, columns = self.grid
        pixels = noise(1, 3, rows * PATCH, columns * PATCH, seed=seed)
        tokens = [Token(None)] * self.leading + [Token(0)] * (rows * columns)
        return Visual("image", pixels, [("image", self.grid)], tokens, [len(tokens)])


class Pixtral(LlavaOver):
    """Images of sizes of their own, side by side in one row of the tower; a word after each row of patches."""

    BREAK = 20

    def image(self, seed):
        rows, columns = ((3, 4), (4, 2), (2, 5))[seed % 3]
        pixels = torch.zeros(1, 3, 5 * PATCH, 5 * PATCH)
        pixels[:, :, : rows * PATCH, : columns * PATCH] = noise(1, 3, rows * PATCH, columns * PATCH, seed=seed)
        size = (rows * PATCH, columns * PATCH)
        return Visual(
            "image", pixels, [("image", (rows, columns))], [Token(0)] * (rows * columns), [columns] * rows, size
        )

    def spelled(self, visual):
        return [token for run in visual.runs for token in [IMAGE] * run + [self.BREAK]]

    def tensors(self, samples):
        sizes = [visual.size for sample in samples for visual in sample.visuals]
        return {**super().tensors(samples), "image_sizes": torch.tensor(sizes)}

    def encode(self, model, visual):
        sizes = torch.tensor([visual.size])
        return model.model.get_image_features(visual.pixels, image_sizes=sizes).pooler_output[0], []


CASES = [
    LlavaOver("clip", CLIPVisionConfig(**SQUARE)),
    LlavaOver("clip, full", CLIPVisionConfig(**SQUARE), leading=1, strategy="full"),
    LlavaOver("siglip, full", SiglipVisionConfig(**SQUARE, vision_use_head=False), strategy="full"),
    LlavaOver("vit", ViTConfig(**SQUARE)),
    LlavaOver("dinov2", Dinov2Config(**LARGER, mlp_ratio=2)),
    LlavaOver("dinov2, wide", Dinov2Config(**LARGER, mlp_ratio=2), grid=(3, 6)),
    LlavaOver("registers", Dinov2WithRegistersConfig(**LARGER, mlp_ratio=2), leading=4),
    LlavaOver("registers, full", Dinov2WithRegistersConfig(**LARGER, mlp_ratio=2), leading=5, strategy="full"),
    Pixtral("pixtral", PixtralVisionConfig(**SQUARE), strategy="full"),
]
over = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
over_attention = pytest.mark.parametrize("case", CASES[:-1], ids=lambda case: case.name)


@over
@pytest.mark.parametrize("layout", ["single", "ragged"])
def test_keep_all_is_the_plain_model(case, layout, model):
    batch = case.batch(case.samples(layout))
    options = {**GREEDY, "return_dict_in_generate": True, "output_logits": True}
    plain = model.generate(**batch, **options)
    with attach(model, DppOnly(keep=1.0)):
        out = model.generate(**batch, **options)
    assert torch.equal(out.sequences, plain.sequences)
    assert all(torch.equal(a, b) for a, b in zip(out.logits, plain.logits))


@over
@pytest.mark.parametrize("layout", ["single", "ragged"])
@pytest.mark.parametrize("name", ["dpp", "script"])
def test_pruned_equals_the_reference(case, layout, model, name):
    samples = case.samples(layout)
    batch = case.batch(samples)
    expected, kept = reference.answers(case, model, samples, reference.total(name, KEEP), STEPS)
    method = {"dpp": DppOnly(keep=KEEP), "script": Script(keep=KEEP, fusion="supplement")}[name]
    with attach(model, method) as pruner:
        out = model.generate(**batch, **GREEDY)
    assert [record.kept.tolist() for record in pruner.records] == kept
    assert torch.equal(out[:, batch["input_ids"].shape[1] :], expected)
    shown = [visual for sample in samples for visual in sample.visuals]
    assert [record.grid for record in pruner.records] == [visual.parts[0][1] for visual in shown]
    assert all(record.structure == (case.leading, case.leading) for record in pruner.records)


@over_attention
def test_attention_is_that_of_the_class_token(case, model):
    """The tower's own attention weights, of the layer that the model reads, without class token and registers."""
    eager = type(model)._from_config(case.config(), attn_implementation="eager").eval()
    eager.load_state_dict(model.state_dict())
    (sample,) = samples = case.samples("single")
    with torch.no_grad():
        tower = eager.model.vision_tower(sample.visuals[0].pixels, output_attentions=True)
    weights = tower.attentions[-2].mean(1)[0]
    patches = case.grid[0] * case.grid[1]
    classed = weights.shape[0] > patches
    expected = weights[0, -patches:] if classed else weights.mean(0)
    with attach(model, AttentionTopK(keep=KEEP)) as pruner:
        model.generate(**case.batch(samples), **GREEDY)
    torch.testing.assert_close(pruner.last.ranking, expected, rtol=1e-4, atol=1e-6)
    with attach(model, VisionZip(keep=KEEP)) as pruner:
        model.generate(**case.batch(samples), **GREEDY)
    assert pruner.last.after == KEEP


def test_attention_with_rotary_positions_is_refused():
    case = CASES[-1]
    with attach(case.model(), AttentionTopK(keep=KEEP)) as pruner, pytest.raises(ValueError, match="attention inside"):
        pruner.model.generate(**case.batch(case.samples("single")), **GREEDY)


REFUSED = {
    "no class token": (SiglipVisionConfig(**SQUARE, vision_use_head=False), "'default' drops a patch"),
    "coarser than its patches": (
        SwinConfig(image_size=SIDE * PATCH, patch_size=2, embed_dim=6, depths=[1, 1], num_heads=[1, 1], window_size=5),
        "'swin' tower: the 99 tokens of an image are not its 20 x 20 patches",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_laid_out_is_refused(name):
    tower, sentence = REFUSED[name]
    case = LlavaOver(name, tower)
    model = case.model()
    model.config.vision_feature_layer = -1
    patches = model.model.get_image_features(case.image(0).pixels).pooler_output[0].shape[0]
    ids = torch.tensor([[1] + [IMAGE] * patches + [11, 12]])
    plain = model.generate(input_ids=ids, pixel_values=case.image(0).pixels, **GREEDY)
    assert plain.shape[1] == ids.shape[1] + STEPS  # the model itself works
    with attach(model, DppOnly(keep=KEEP)), pytest.raises(UnsupportedModel, match=sentence):
        model.generate(input_ids=ids, pixel_values=case.image(0).pixels, **GREEDY)


def test_images_that_were_encoded_beforehand():
    """They lie as the same images from pixels do."""
    case = next(case for case in CASES if case.name == "registers")
    model, samples = case.model(), case.samples("single")
    if "mm_encoder_outputs" not in inspect.signature(model.forward).parameters:
        pytest.skip("this transformers has no mm_encoder_outputs")
    batch = case.batch(samples)
    with torch.no_grad():
        output = model.model.get_image_features(batch["pixel_values"])
    with attach(model, DppOnly(keep=KEEP)) as pruner, torch.no_grad():
        want = model(**batch).logits
        kept = pruner.last.kept
        del batch["pixel_values"]
        got = model(**batch, mm_encoder_outputs={"image": output}).logits
    assert torch.equal(pruner.last.kept, kept)
    assert pruner.last.structure == (4, 4)
    torch.testing.assert_close(got, want)


def test_a_dual_encoder_of_another_tower_is_refused():
    case = next(case for case in CASES if case.name == "dinov2")
    sentence = r"dual_encoder CLIPModel has a 'clip_vision_model' tower, but that of .* is a 'dinov2'"
    with pytest.raises(ValueError, match=sentence):
        attach(case.model(), Script(keep=KEEP), dual_encoder=(tiny_llava.clip(), tiny_llava.tokenizer()))


def test_shapes_of_ever_new_image_sizes_are_not_all_kept(monkeypatch):
    """Those of LLaVA-NeXT: a server that sees images of any size would grow with each new one."""
    from tests.support.families.llava import LlavaNext
    from vlprune.models import llava_next

    monkeypatch.setattr(llava_next, "_SHAPES", {})
    monkeypatch.setattr(llava_next, "MAX_SHAPES", 4)
    model = LlavaNext().model()
    sizes = [(20 + i, 40) for i in range(9)]
    images = [llava_next.tiled_images(model, {"image_sizes": [size]})[0] for size in sizes]
    first = [llava_next.image_shape(model, image) for image in images]
    assert len(llava_next._SHAPES) <= 4
    assert [llava_next.image_shape(model, image).length for image in images] == [shape.length for shape in first]
    assert llava_next.image_shape(model, images[-1]) is llava_next.image_shape(model, images[-1])

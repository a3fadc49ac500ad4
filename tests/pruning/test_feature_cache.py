"""Encode once, ask many."""

import re

import pytest
import torch
from PIL import Image

from tests.support import llava_reference as reference
from tests.support import tiny_llava as tiny
from vlprune import Random, Script, attach
from vlprune.models import EncodedImage
from vlprune.pruning.feature_cache import FeatureCache, digest
from vlprune.types import square_shape

KEEP = 9
GREEDY = {"do_sample": False, "max_new_tokens": 6}


@pytest.fixture
def runs(model):
    """How many images each run of the tower saw."""
    seen = []
    model.model.vision_tower.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(len(args[0] if args else kwargs["pixel_values"])), with_kwargs=True
    )
    return seen


def test_one_run_for_several_questions(model, processor, device, runs):
    texts = ["what color is the cat ?", "how many dogs ?", "is it red ?"]
    batches = [tiny.inputs(processor, [text], [1], device) for text in texts]
    with attach(model, Script(keep=KEEP), processor=processor) as pruner:
        found = []
        for batch in batches:
            found.append((model.generate(**batch, **GREEDY), pruner.last.kept.tolist()))
        assert runs == [1]
        pruner.clear_cache()
        model.generate(**batches[0], **GREEDY)
        assert runs == [1, 1]
    with attach(model, Script(keep=KEEP), processor=processor, cache_bytes=0) as pruner:
        for batch, (out, kept) in zip(batches, found):
            assert torch.equal(model.generate(**batch, **GREEDY), out)
            assert pruner.last.kept.tolist() == kept
        assert runs == [1] * 5
    assert len({tuple(kept) for _, kept in found}) > 1  # chosen anew for each question


def test_a_hit_is_bit_identical(model, clip, processor, ragged):
    options = {**GREEDY, "return_dict_in_generate": True, "output_logits": True}
    with attach(model, Script(keep=KEEP), processor=processor, dual_encoder=clip) as pruner:
        miss, first = model.generate(**ragged, **options), pruner.last
        hit, second = model.generate(**ragged, **options), pruner.last
    assert torch.equal(miss.sequences, hit.sequences)
    assert all(torch.equal(a, b) for a, b in zip(miss.logits, hit.logits))
    assert torch.equal(first.relevance, second.relevance)
    assert torch.equal(first.kept, second.kept)


def test_keep_all_is_the_plain_model_on_a_hit(model, processor, ragged):
    plain = model.generate(**ragged, **GREEDY, return_dict_in_generate=True, output_logits=True)
    with attach(model, Script(keep=1.0), processor=processor):
        for _ in range(2):
            out = model.generate(**ragged, **GREEDY, return_dict_in_generate=True, output_logits=True)
            assert torch.equal(out.sequences, plain.sequences)
            assert all(torch.equal(a, b) for a, b in zip(out.logits, plain.logits))


def test_only_new_images_are_encoded(model, processor, device, runs):
    both = tiny.inputs(processor, ["is the first like the second ?"], [2], device)
    one = tiny.inputs(processor, ["is it red ?"], [1], device)
    expected = reference.padded(reference.answers(model, both, KEEP, 6), 6)
    runs.clear()
    with attach(model, Script(keep=KEEP), processor=processor):
        model.generate(**one, **GREEDY)
        out = model.generate(**both, **GREEDY)
        assert runs == [1, 1]
        model.generate(**both, **GREEDY)
    assert runs == [1, 1]
    torch.testing.assert_close(reference.new_tokens(out, both, 6), expected)


def test_new_weights_are_noticed(model, processor, single, runs):
    with attach(model, Script(keep=KEEP), processor=processor) as pruner:
        model.generate(**single, **GREEDY)
        before = pruner.last.relevance
        with torch.no_grad():
            model.model.multi_modal_projector.linear_2.weight.mul_(-1)
        model.generate(**single, **GREEDY)
    assert runs == [1, 1]
    assert not torch.equal(before, pruner.last.relevance)


def test_nothing_is_cached_while_training(model, processor, single, runs):
    labels = single["input_ids"].masked_fill(single["input_ids"] == tiny.IMAGE, -100)
    with attach(model, Script(keep=KEEP), processor=processor):
        model.generate(**single, **GREEDY)
        for _ in range(2):
            model(**single, labels=labels).loss.backward()
        model.train()
        with torch.no_grad():
            model(**single)
        assert runs == [1] * 4
    assert float(model.model.multi_modal_projector.linear_1.weight.grad.abs().sum()) > 0


def test_detaching_drops_the_cache(model, single):
    with attach(model, Random(keep=KEEP)) as pruner:
        model.generate(**single, **GREEDY)
        assert pruner.feature_cache.nbytes > 0
    assert pruner.feature_cache.nbytes == 0


def test_the_byte_limit(model, processor, device, runs):
    batches = [tiny.inputs(processor, ["is it red ?"], [1], device, seed=seed) for seed in (0, 1, 2)]
    size = 4 * tiny.TOKENS * (tiny.WIDTH + tiny.TOWER)
    with attach(model, Random(keep=KEEP), cache_bytes=2 * size) as pruner:
        for i in (0, 1, 2, 2, 1):
            model.generate(**batches[i], **GREEDY)
        assert runs == [1, 1, 1]
        assert pruner.feature_cache.nbytes == 2 * size
        model.generate(**batches[0], **GREEDY)
        assert runs == [1, 1, 1, 1]
        model.generate(**batches[1], **GREEDY)  # used more recently than the third
        assert runs == [1, 1, 1, 1]


def test_the_cache_itself():
    cache = FeatureCache(limit=100)
    shape = square_shape("image", "image", 4)
    cache.put("big", EncodedImage(shape, torch.zeros(100)))
    assert len(cache) == 0
    cache.put("a", EncodedImage(shape, torch.zeros(4), torch.zeros(4)))
    assert (len(cache), cache.nbytes) == (1, 32)
    assert cache.get("a").tower is not None
    assert cache.get("b") is None


def test_keys_are_of_content_shape_and_dtype():
    image = torch.rand(1, 3, 4, 4)
    key = digest(image)
    assert key == digest(image.clone())
    assert key != digest(image.to(torch.bfloat16))
    assert key != digest(image.reshape(1, 3, 2, 8))
    other = image.clone()
    other[0, 0, 0, 0] += 1e-3
    assert key != digest(other)


@pytest.mark.parametrize("cache_bytes", [0, 2**20])
def test_ask_many(model, processor, device, runs, cache_bytes):
    questions = ["what color is the cat ?", "is it red ?", "where is the big blue dog in the image ?"]
    expected = []
    for question in questions:
        batch = tiny.inputs(processor, [question], [1], device)
        expected.append(processor.decode(reference.answers(model, batch, KEEP, 6)[0], skip_special_tokens=True).strip())
    runs.clear()
    with attach(model, Script(keep=KEEP), processor=processor, cache_bytes=cache_bytes, query="other") as pruner:
        answers = pruner.ask_many(tiny.picture(0), questions, **GREEDY)
        assert pruner.query == "other"
    assert answers == expected
    assert [record.query for record in pruner.records] == questions
    assert runs == [1]


def test_ask_many_wants_a_processor_and_questions(model, processor):
    with attach(model, Random(keep=KEEP)) as pruner, pytest.raises(ValueError, match="processor="):
        pruner.ask_many(tiny.picture(0), ["is it red ?"])
    with attach(model, Random(keep=KEEP), processor=processor) as pruner:
        for questions in ("is it red ?", [], [3], ["is <image> red ?"]):
            with pytest.raises(ValueError, match="questions="):
                pruner.ask_many(tiny.picture(0), questions)


def test_ask_many_about_a_file(model, processor, tmp_path):
    pixels = tiny.picture(0).permute(1, 2, 0).numpy()
    path = tmp_path / "photo.png"
    Image.fromarray(pixels).save(path)
    with attach(model, Random(keep=KEEP), processor=processor) as pruner:
        expected = pruner.ask_many(tiny.picture(0), ["is it red ?"], **GREEDY)
        for image in (path, str(path), Image.fromarray(pixels), pixels):
            assert pruner.ask_many(image, ["is it red ?"], **GREEDY) == expected
        for image, sentence in {
            "nofile.png": "there is no file 'nofile.png'.",
            "https://a.b/c.png": "'https://a.b/c.png' is an address, and only files are read: download it first.",
        }.items():
            with pytest.raises(ValueError, match=f"^{re.escape(sentence)}$"):
                pruner.ask_many(image, ["is it red ?"])
        with pytest.raises(TypeError, match=r"^image=5: pass an image, or the path of one\.$"):
            pruner.ask_many(5, ["is it red ?"])

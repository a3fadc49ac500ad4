"""The shipped model: it loads by the ordinary road, is small, and answers."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoProcessor, LlavaForConditionalGeneration

from vlprune import DppOnly, Random, Script, UniformGrid, pocket
from vlprune.evaluation.answers import generate_answers
from vlprune.evaluation.load_model import LoadedModel
from vlprune.evaluation.questions import is_right, pocket_questions
from vlprune.pocket.train import WORDS

FOLDER = Path(pocket.path())


@pytest.fixture(scope="module")
def loaded():
    return pocket.load()


@pytest.fixture(scope="module")
def shares(loaded):
    """The share of right answers, of six questions of each kind, by several methods."""
    methods = {"all": UniformGrid(keep=1.0), "random": Random(keep=64), "dpp": DppOnly(keep=64)}
    methods |= {f"script {keep}": Script(keep=keep) for keep in (128, 64, 4)}
    found = dict.fromkeys(methods, 0.0)
    for answered in generate_answers(LoadedModel("pocket", *loaded), pocket_questions("validation", 6), methods):
        good = [is_right(text, asked.answers) for asked, text in zip(answered.questions, answered.texts)]
        found[answered.method] += sum(good) / 36
    return found


def test_folder_is_small_and_safe():
    files = [file for file in FOLDER.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 30_000_000
    assert {file.suffix for file in files} <= {".safetensors", ".json", ".jinja", ".md"}
    for file in FOLDER.glob("*.json"):
        assert "auto_map" not in json.loads(file.read_text()), f"{file.name} asks for remote code"


def test_loads_by_the_ordinary_road(loaded):
    model = LlavaForConditionalGeneration.from_pretrained(pocket.path())
    assert model.dtype == torch.float32
    assert torch.equal(model.lm_head.weight, loaded[0].lm_head.weight)
    processor = AutoProcessor.from_pretrained(pocket.path())
    assert processor.tokenizer.convert_ids_to_tokens(list(range(len(WORDS)))) == WORDS
    assert (
        processor.tokenizer.decode(processor.tokenizer("Is there a RED Star?")["input_ids"])
        == "<s> is there a red star ?"
    )


def test_has_576_visual_tokens_and_a_clip_that_shares_the_tower(loaded):
    model, _, clip = loaded
    assert model.config.image_seq_length == 576
    assert clip.vision_model is model.model.vision_tower
    pixels = torch.zeros(1, 3, 192, 192)
    assert model.get_image_features(pixel_values=pixels).pooler_output[0].shape == (576, 256)
    assert clip.get_image_features(pixel_values=pixels).pooler_output.shape == (1, 256)


def test_clip_matches_captions_to_scenes(loaded):
    """Contrastive training took: each of 8 scenes finds its own full caption first, mostly."""
    _, processor, clip = loaded
    scenes = pocket.scenes("validation", 8)
    captions = [" and ".join(f"a {t.color} {t.shape}" for t in s.things[:3]) for s in scenes]
    ids = processor.tokenizer([f"{c}</s>" for c in captions], padding=True, padding_side="right", return_tensors="pt")
    pixels = processor.image_processor(images=pocket.images(scenes), return_tensors="pt").pixel_values
    with torch.no_grad():
        text = clip.get_text_features(input_ids=ids.input_ids, attention_mask=ids.attention_mask).pooler_output
        image = clip.get_image_features(pixel_values=pixels).pooler_output
    best = torch.nn.functional.normalize(text, dim=-1) @ torch.nn.functional.normalize(image, dim=-1).T
    assert (best.argmax(1) == torch.arange(8)).sum() >= 6


def test_answers_with_all_tokens(shares):
    assert shares["all"] >= 0.95


def test_answers_from_64_tokens(shares):
    for name in ("random", "dpp", "script 64"):
        assert shares[name] >= 0.85, name


def test_fewer_tokens_are_harder(shares):
    assert shares["script 4"] < shares["script 128"]


def test_talks_over_several_turns(loaded):
    model, processor, _ = loaded
    (scene,) = pocket.scenes("validation", 1, start=5)
    first, second = pocket.questions(scene)[:2]
    chat = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": first.text}]},
        {"role": "assistant", "content": [{"type": "text", "text": first.answer}]},
        {"role": "user", "content": [{"type": "text", "text": second.text}]},
    ]
    text = processor.apply_chat_template(chat, add_generation_prompt=True)
    inputs = processor(images=pocket.images([scene]), text=text, return_tensors="pt")
    out = model.generate(**inputs, max_new_tokens=4, do_sample=False)
    answer = processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    assert answer == second.answer


def test_the_question_is_found_in_the_prompt(loaded):
    """The tokenizer lowers all it reads, the chat template's marks too; nothing but the question must be left."""
    import warnings

    from vlprune import attach

    model, processor, clip = loaded
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "is there a red star?"}]}]
    text = processor.apply_chat_template(turn, add_generation_prompt=True)
    inputs = processor(images=pocket.images(pocket.scenes("validation", 1)), text=text, return_tensors="pt")
    with warnings.catch_warnings(), attach(model, Script(keep=8), processor=processor, dual_encoder=clip) as pruner:
        warnings.simplefilter("error")
        model.generate(**inputs, max_new_tokens=1)
    assert pruner.last.query == "is there a red star ?"
    assert (pruner.last.source, pruner.last.sign) == ("clip", 1)

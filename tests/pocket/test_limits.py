"""What the pocket model says about itself when it is asked about what it cannot know."""

import io
import math

import numpy as np
import pytest
from PIL import Image, ImageDraw

from vlprune import pocket
from vlprune.pocket.limits import explain_limits, explain_photo_limits, resembles_scene, unknown_words
from vlprune.pocket.render import images

SCENES = 24


@pytest.fixture(scope="module")
def drawn():
    return images(pocket.scenes("validation", SCENES))


def as_jpeg(image):
    file = io.BytesIO()
    image.save(file, "JPEG", quality=75)
    return Image.open(file)


def red_star(paper):
    image = Image.new("RGB", (400, 300), paper)
    turns = [(120 if i % 2 == 0 else 50, i * math.pi / 5) for i in range(10)]
    ImageDraw.Draw(image).polygon([(200 + r * math.sin(t), 150 - r * math.cos(t)) for r, t in turns], fill="red")
    return image


def gradient(*ends):
    line = np.linspace(0, 1, 256)[None, :, None]
    low, high = np.array(ends, dtype=float)
    return Image.fromarray(np.broadcast_to(low + line * (high - low), (256, 256, 3)).astype(np.uint8))


def noise(channels):
    values = np.random.default_rng(0).integers(0, 256, (200, 300, channels), dtype=np.uint8)
    return Image.fromarray(np.broadcast_to(values, (200, 300, 3)).copy())


OTHERS = {
    **{paper: Image.new("RGB", (64, 64), paper) for paper in ("white", "black", "grey", "red", "skyblue")},
    **{f"a star on {paper}": red_star(paper) for paper in ("white", "lightgrey", "grey", "black", "lightblue")},
    "coloured noise": noise(3),
    "grey noise": noise(1),
    "a sky": gradient((130, 190, 240), (230, 240, 250)),
    "a grey slope": gradient((60, 60, 60), (180, 180, 180)),
    "one pixel": Image.new("RGB", (1, 1), "green"),
    "with alpha": Image.new("RGBA", (50, 80), (1, 2, 3, 4)),
}


@pytest.mark.parametrize("change", ["none", "jpeg", "double", "half", "wide"])
def test_scenes_are_known_again(drawn, change):
    for image in drawn:
        wide = Image.new("RGB", (240, 192))
        wide.paste(image, (24, 0))
        seen = {
            "none": image,
            "jpeg": as_jpeg(image),
            "double": image.resize((384, 384)),
            "half": image.resize((96, 96)),
            "wide": wide,  # of which the processor takes the middle
        }
        assert resembles_scene(seen[change])


@pytest.mark.parametrize("name", OTHERS)
def test_other_images_are_not(name):
    assert not resembles_scene(OTHERS[name])


@pytest.mark.parametrize(
    "question", ["what colour is the man's hat?", "Is there a RED Star?", "where is the pink-red star, please!", "a?b"]
)
def test_unknown_words_are_the_tokenizers(question):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(pocket.path())
    for word in question.lower().replace("?", " ").replace(",", " ").replace("!", " ").split():
        ids = tokenizer(word, add_special_tokens=False)["input_ids"]
        assert (word in unknown_words(question)) == (tokenizer.unk_token_id in ids)


def test_no_question_of_its_own_is_warned_about(drawn):
    for scene, image in zip(pocket.scenes("validation", SCENES), drawn):
        for question in pocket.questions(scene):
            assert explain_limits(question.text, image, question.answer) is None


@pytest.mark.parametrize("there", [True, False])
def test_the_sentence(drawn, monkeypatch, there):
    monkeypatch.setattr("vlprune.pocket.limits.find_folder", lambda: "models/photo" if there else None)
    begin = "the pocket model knows only drawn scenes of coloured shapes with digits; "
    models = "photo or llava-hf/llava-1.5-7b-hf" if there else "llava-hf/llava-1.5-7b-hf"
    end = f": try `vlprune scene`, or for photographs --model {models}."
    known, other = drawn[0], OTHERS["a star on white"]
    asked = "what color is the star?"
    assert explain_limits(asked, other, "red") == f"{begin}this image is unlike them{end}"
    assert explain_limits(asked, known, "") == f"{begin}it gave no answer{end}"
    assert explain_limits("what is the man holding?", other, "") == (
        f"{begin}this image is unlike them, it does not know the words 'man', 'holding', and it gave no answer{end}"
    )


PHOTO_WORDS = [
    "is",
    "are",
    "there",
    "a",
    "dog",
    "dogs",
    "in",
    "the",
    "picture",
    "what",
    "colour",
    "how",
    "many",
    "doing",
    "number",
    "written",
    "on",
    "red",
    "card",
    "it",
]


@pytest.mark.parametrize(
    "question",
    [
        *("is there a dog in the picture?", "Are there dogs?", "what colour is the dog?", "How many dogs are there?"),
        *("what is the dog doing?", "what number is written?", "what is written on the red card?"),
    ],
)
def test_what_the_photo_model_was_taught(question):
    assert explain_photo_limits(question, PHOTO_WORDS, "yes") is None


@pytest.mark.parametrize(
    ("question", "answer", "why"),
    [
        ("what is it?", "red", "it was not taught such a question"),
        ("what is the brand of it?", "red", "it does not know the words 'brand', 'of'"),
        ("is there a zebra?", "", "it does not know the word 'zebra' and it gave no answer"),
    ],
)
def test_what_it_was_not(question, answer, why):
    said = explain_photo_limits(question, PHOTO_WORDS, answer)
    assert said.partition("; ")[2] == (
        f'{why}: try "is there a dog in the picture?", or --model llava-hf/llava-1.5-7b-hf.'
    )

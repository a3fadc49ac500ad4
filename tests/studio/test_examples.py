"""The page offers images that its model knows."""

from pathlib import Path

from PIL import Image

from vlprune.pocket.photo_folder import find_folder
from vlprune.studio.examples import PHOTO_SCENES, SCENES, examples_for


def names(examples):
    return [Path(example.image).name for example in examples]


def test_photographs_for_the_photo_model(tmp_path):
    examples = examples_for("photo", tmp_path)
    assert names(examples) == [f"photo-{number}.png" for number in PHOTO_SCENES]
    assert examples == examples_for(str(find_folder()), tmp_path)
    assert examples[0].question == "what is written on the black card?"
    assert Image.open(examples[0].image).size == (336, 336)


def test_drawn_scenes_for_others(tmp_path):
    assert names(examples_for("pocket", tmp_path)) == [f"scene-{number}.png" for number in SCENES]
    assert names(examples_for("llava-hf/llava-1.5-7b-hf", tmp_path)) == [f"scene-{number}.png" for number in SCENES]

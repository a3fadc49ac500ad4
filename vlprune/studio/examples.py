"""Images that the page offers, drawn as they are needed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from vlprune import pocket

#: Of the pocket model's test split: the scene of `vlprune demo`, and the first ones.
SCENES = (18, 0, 1, 2)
#: Photographs with cards: that of `vlprune demo`, and the first ones.
PHOTO_SCENES = (2, 0, 1)


class Example(NamedTuple):
    """The path of an image, and a question about it."""

    image: str
    question: str


def examples_for(model: str, folder: Path) -> list[Example]:
    """Images for the model of that name, written into a folder: photographs for the photo model, else drawn scenes."""
    from vlprune.evaluation.demo_scenes import photo_scene
    from vlprune.pocket.photo_folder import find_folder, is_photo_folder

    photo = find_folder() if model == "photo" else Path(model)
    if photo is None or not is_photo_folder(photo) or not (photo / "pictures").is_dir():
        return draw_examples(folder)
    examples = []
    for number in PHOTO_SCENES:
        scene, path = photo_scene(number, photo / "pictures"), folder / f"photo-{number}.png"
        scene.image.save(path)
        examples.append(Example(str(path), scene.questions[0].text))
    return examples


def draw_examples(folder: Path, scenes: Sequence[int] = SCENES) -> list[Example]:
    """Draw test scenes into a folder, each with a question about a colour, or else its first one.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (example,) = draw_examples(Path(folder), [18])
    >>> example.question
    'what color is the triangle with a 6?'
    """
    examples = []
    for number in scenes:
        (scene,) = pocket.scenes("test", 1, start=number)
        path = folder / f"scene-{number}.png"
        pocket.images([scene])[0].save(path)
        questions = pocket.questions(scene)
        asked = next((question for question in questions if question.kind == "color"), questions[0])
        examples.append(Example(str(path), asked.text))
    return examples

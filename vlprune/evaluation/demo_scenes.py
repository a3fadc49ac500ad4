"""What the demo asks about: a scene drawn for the pocket model, or a photograph with cards on it for the photo model.

Which one is shown by default is decided by a rule and not by eye: see `DEMO_SCENE` and `PHOTO_SCENE`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import torch
from PIL import Image
from torch import Tensor

from vlprune import pocket
from vlprune.pocket.photo_questions import existence_question
from vlprune.pocket.photo_scenes import GRID, Card, card_questions, cells, draw_scene, random_scene
from vlprune.pocket.render import images, pack_scenes, things_under_grid

if TYPE_CHECKING:
    from vlprune.show import Mark

PICTURED_KINDS = ("color", "digit", "where")  # of the questions about a drawn scene that the picture shows
#: Of the first 21 test scenes that have questions of all these kinds, the one for which relevance finds what is asked
#: about (`rank_asked`, mean over the kinds, with Script) as well as it does in the middle: ten do better, ten worse.
DEMO_SCENE = 18
#: The same of the first 21 photographs with three cards, by the questions about the cards.
PHOTO_SCENE = 2
CARDS = 3
#: The photographs, each with a thing that is there and one that is not.
PHOTOGRAPHS = {
    "cat.jpg": ("cat", "bicycle"),
    "coffee.jpg": ("cup", "dog"),
    "astronaut.jpg": ("woman", "beach"),
}


@dataclass(frozen=True)
class DemoQuestion:
    """A question and its answer; where it is known, which tokens lie on what is asked about (n,), and circles there.

    `pictured` questions have a row of the picture.
    """

    text: str
    answer: str
    asked: Tensor
    marks: tuple[Mark, ...] = ()
    pictured: bool = True


@dataclass(frozen=True)
class DemoScene:
    """An image, its name, and what is asked about it."""

    name: str
    image: Image.Image
    questions: list[DemoQuestion]


def drawn_scene(number: int) -> DemoScene:
    """A scene of the pocket model's test split, with all there is to ask about it.

    >>> scene = drawn_scene(DEMO_SCENE)
    >>> scene.image.size, scene.questions[0].text
    ((192, 192), 'is there a orange circle?')
    """
    from vlprune.show import Mark

    (scene,) = pocket.scenes("test", 1, start=number)
    under = things_under_grid(torch.from_numpy(pack_scenes([scene])[0]), GRID)[0]
    questions = []
    for one in pocket.questions(scene):
        things = [scene.things[i] for i in one.about]
        asked = torch.isin(under, torch.tensor(one.about, dtype=under.dtype))
        marks = tuple(Mark(thing.x, thing.y, 1.3 * thing.radius) for thing in things)
        questions.append(DemoQuestion(one.text, one.answer, asked, marks, one.kind in PICTURED_KINDS))
    return DemoScene(scene.name, images([scene])[0], questions)


def photo_scene(number: int, folder: Path) -> DemoScene:
    """A photograph of `folder` with cards pasted on it: what is on each card, and what is on the photograph.

    Photographs take turns; colours, texts and places of the cards are drawn by the number.
    """
    name = list(PHOTOGRAPHS)[number % len(PHOTOGRAPHS)]
    scene = random_scene(name, (), Random(number), inset=False, cards=CARDS, augment=False)
    with Image.open(folder / name) as file:
        image = draw_scene(scene, {name: file.convert("RGB")})
    questions = [
        DemoQuestion(one.text, one.answer, _tokens(cells(one.boxes)), (_around(card),))
        for one, card in zip(card_questions(scene), scene.cards, strict=True)
    ]
    for thing, there in zip(PHOTOGRAPHS[name], (True, False)):
        asked = existence_question(thing, there)
        questions.append(DemoQuestion(asked.text, asked.answer, _tokens([]), pictured=False))
    return DemoScene(f"{name} {number}", image, questions)


def _tokens(at: list[int]) -> Tensor:
    """(n,) true at these tokens."""
    return torch.zeros(GRID * GRID, dtype=torch.bool).index_fill(0, torch.tensor(at, dtype=torch.long), True)


def _around(card: Card) -> Mark:
    """A circle around a card."""
    from vlprune.show import Mark

    left, top, right, bottom = card.box
    return Mark((left + right) / 2, (top + bottom) / 2, 0.55 * ((right - left) ** 2 + (bottom - top) ** 2) ** 0.5)

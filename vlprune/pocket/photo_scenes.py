"""Photographs with something pasted on them, and what can be asked about the result.

A scene is a photograph, perhaps with a smaller photograph set into it, perhaps with cards that carry a word or a
number. What was pasted has a place that is known to the pixel: its questions say where to look.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import TYPE_CHECKING

from vlprune.pocket.photo_questions import (
    CARD_COLOURS,
    THINGS,
    WORDS,
    Photograph,
    Question,
    ThingCounts,
    caption_questions,
    existence_question,
)

if TYPE_CHECKING:
    from PIL.Image import Image
    from PIL.ImageFont import FreeTypeFont

Box = tuple[int, int, int, int]
SIZE = 336  # pixels, as LLaVA-1.5
PATCH = 14
GRID = SIZE // PATCH
CARD_HEIGHTS = (26, 60)  # pixels: a small classifier reads digits of 34 off the frozen tower, of 18 it does not


@dataclass(frozen=True)
class Card:
    """A word or number on a coloured card; `box` is (left, top, right, bottom)."""

    text: str
    colour: str
    box: Box


@dataclass(frozen=True)
class Scene:
    """A photograph, the part of it that is shown (`crop`, in shares of its sides), and what is pasted on it."""

    photo: str
    crop: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)
    flipped: bool = False
    inset: str | None = None
    inset_box: Box = (0, 0, 0, 0)
    cards: tuple[Card, ...] = ()


def random_scene(
    photo: str, others: Sequence[str], rng: Random, *, inset: bool, cards: int, augment: bool, numbers: float = 0.5
) -> Scene:
    """A scene of the photograph: with another set in, with up to `cards` cards, cropped and flipped.

    A share `numbers` of the cards carries a number, the others a word.
    """
    scene = Scene(photo)
    if augment:
        wide, tall = rng.uniform(0.75, 1.0), rng.uniform(0.75, 1.0)
        left, top = rng.uniform(0, 1 - wide), rng.uniform(0, 1 - tall)
        scene = replace(scene, crop=(left, top, left + wide, top + tall), flipped=rng.random() < 0.5)
    taken: list[Box] = []
    if inset:
        size = rng.randrange(70, 141)
        place = _free_place((size, size), taken, rng)
        assert place is not None
        taken.append(place)
        scene = replace(scene, inset=rng.choice([name for name in rng.sample(others, 2) if name != photo]))
        scene = replace(scene, inset_box=place)
    drawn = []
    for colour in rng.sample(sorted(CARD_COLOURS), cards):
        text = rng.choice(WORDS) if rng.random() < 1 - numbers else str(rng.randrange(100))
        tall = rng.randint(*CARD_HEIGHTS)
        place = _free_place(_card_size(text, tall), taken, rng)
        if place is not None:
            taken.append(place)
            drawn.append(Card(text, colour, place))
    return replace(scene, cards=tuple(drawn))


def _free_place(size: tuple[int, int], taken: list[Box], rng: Random) -> Box | None:
    """A box of this (width, height) inside the picture that overlaps no other, None if 30 tries find none."""
    if size[0] > SIZE:
        return None
    for _ in range(30):
        left, top = rng.randrange(SIZE - size[0] + 1), rng.randrange(SIZE - size[1] + 1)
        box = (left, top, left + size[0], top + size[1])
        if all(box[2] <= b[0] or b[2] <= box[0] or box[3] <= b[1] or b[3] <= box[1] for b in taken):
            return box
    return None


@cache
def _font(card_height: int) -> FreeTypeFont:
    """Pillow's own font in the size for a card; reading it takes longer than drawing."""
    from PIL import ImageFont

    return ImageFont.load_default(0.75 * card_height)  # type: ignore[return-value]


def _card_size(text: str, height: int) -> tuple[int, int]:
    width = _font(height).getlength(text)
    return round(width + 0.4 * height), height


def draw_scene(scene: Scene, photographs: Mapping[str, Image]) -> Image:
    """The picture of the scene, 336 × 336."""
    from PIL import Image, ImageDraw, ImageOps

    picture = photographs[scene.photo]
    if scene.crop != (0.0, 0.0, 1.0, 1.0) or picture.size != (SIZE, SIZE):
        (left, top, right, bottom), (wide, tall) = scene.crop, picture.size
        part = (left * wide, top * tall, right * wide, bottom * tall)
        picture = picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=part)
    picture = ImageOps.mirror(picture) if scene.flipped else picture.copy()
    if scene.inset is not None:
        x0, y0, x1, y1 = scene.inset_box
        small = photographs[scene.inset].resize((x1 - x0, y1 - y0), Image.Resampling.BICUBIC)
        picture.paste(small, (x0, y0))
    pen = ImageDraw.Draw(picture)
    for card in scene.cards:
        x0, y0, x1, y1 = card.box
        pen.rectangle((x0, y0, x1 - 1, y1 - 1), fill=CARD_COLOURS[card.colour])
        ink = (0, 0, 0) if card.colour in ("yellow", "white") else (255, 255, 255)
        pen.text(((x0 + x1) / 2, (y0 + y1) / 2), card.text, fill=ink, font=_font(y1 - y0), anchor="mm")
    return picture


def card_questions(scene: Scene) -> list[Question]:
    """What is written on each card; a card that is the only one is also asked for by what it carries.

    >>> [q.text for q in card_questions(Scene("1.jpg", cards=(Card("42", "red", (0, 0, 40, 30)),)))]
    ['what number is written?']
    """
    if len(scene.cards) == 1:
        (card,) = scene.cards
        kind = "number" if card.text.isdigit() else "word"
        return [Question(f"read {kind}", f"what {kind} is written?", card.text, kind, (card.box,))]
    return [
        Question("read card", f"what is written on the {c.colour} card?", c.text, f"{c.colour} card", (c.box,))
        for c in scene.cards
    ]


def visible_things(scene: Scene, facts: Mapping[str, Photograph]) -> tuple[dict[str, int], set[str]]:
    """(things present, with how many captions name them; things that may be there) in the photograph and its inset."""
    parts = [facts[name] for name in (scene.photo, scene.inset) if name is not None]
    present: dict[str, int] = {}
    for part in parts:
        for thing, count in part.present.items():
            present[thing] = max(present.get(thing, 0), count)
    return present, {thing for part in parts for thing in part.unsure} - set(present)


def ask(
    scene: Scene, facts: Mapping[str, Photograph], counts: ThingCounts, rng: Random, *, existence: int, others: int
) -> list[Question]:
    """Questions about the scene: `existence` ones for "yes" and as many for "no", `others` from captions, all cards."""
    present, unsure = visible_things(scene, facts)
    own = facts[scene.photo]
    inset_only = set(facts[scene.inset].present) - set(own.present) - own.unsure if scene.inset else set()
    candidates = sorted(inset_only) if scene.inset else sorted(present)
    there = rng.sample(candidates, min(existence, len(candidates)))
    if scene.inset:  # and one of the photograph around it
        around = sorted(set(own.present) - set(facts[scene.inset].present) - facts[scene.inset].unsure)
        there += rng.sample(around, min(1, len(around)))
    asked = []
    absent = [thing for thing in THINGS if thing not in present and thing not in unsure]
    for i, thing in enumerate(there):
        boxes = (scene.inset_box,) if thing in inset_only else ()
        asked.append(existence_question(thing, True, boxes=boxes, sure=present[thing] > 1))
        wrong = counts.draw_absent(present, absent, ("popular", "co-occurring")[i % 2], rng)
        absent.remove(wrong)
        asked.append(existence_question(wrong, False, boxes=boxes))
    shared = set(facts[scene.inset].present) | facts[scene.inset].unsure if scene.inset else set()
    more = [question for question in caption_questions(own) if question.about not in shared]
    more = [question for question in more if rng.random() < counts.share_to_ask(question)]
    return asked + rng.sample(more, min(others, len(more))) + card_questions(scene)


def cells(boxes: Sequence[Box]) -> list[int]:
    """The tokens, in reading order, whose patches share at least a quarter of their area with a box.

    >>> cells([(0, 0, 28, 14)])
    [0, 1]
    """
    found = set()
    for left, top, right, bottom in boxes:
        for row in range(max(top, 0) // PATCH, min((bottom - 1) // PATCH + 1, GRID)):
            for column in range(max(left, 0) // PATCH, min((right - 1) // PATCH + 1, GRID)):
                wide = min(right, (column + 1) * PATCH) - max(left, column * PATCH)
                tall = min(bottom, (row + 1) * PATCH) - max(top, row * PATCH)
                whole = min(right - left, PATCH) * min(bottom - top, PATCH)
                if wide * tall * 4 >= whole:
                    found.add(row * GRID + column)
    return sorted(found)

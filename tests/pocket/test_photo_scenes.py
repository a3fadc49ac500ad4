"""Scenes: what is pasted lies where its box says, and nothing else of the photograph changes."""

from random import Random

import numpy as np
import pytest
from PIL import Image

from vlprune.pocket.photo_questions import ThingCounts, read_photograph
from vlprune.pocket.photo_scenes import (
    GRID,
    PATCH,
    SIZE,
    Card,
    Scene,
    ask,
    card_questions,
    cells,
    draw_scene,
    random_scene,
)

FACTS = {
    "dog.jpg": read_photograph("dog.jpg", ["A black dog runs in snow .", "A black dog ."]),
    "boat.jpg": read_photograph("boat.jpg", ["A boat on water .", "Two boats .", "A man in a boat ."]),
    "tent.jpg": read_photograph("tent.jpg", ["A tent by a tree .", "A red tent ."]),
}


@pytest.fixture
def photographs():
    return {name: Image.new("RGB", (SIZE, SIZE), colour) for name, colour in zip(FACTS, ("gray", "navy", "olive"))}


def overlap(a, b):
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


@pytest.mark.parametrize("seed", range(8))
def test_pasted_parts_lie_apart_and_inside(seed):
    scene = random_scene("dog.jpg", list(FACTS), Random(seed), inset=True, cards=6, augment=True)
    boxes = [scene.inset_box, *(card.box for card in scene.cards)]
    assert scene.inset in ("boat.jpg", "tent.jpg")
    assert len({card.colour for card in scene.cards}) == len(scene.cards) >= 2
    for i, box in enumerate(boxes):
        assert 0 <= box[0] < box[2] <= SIZE
        assert 0 <= box[1] < box[3] <= SIZE
        assert not any(overlap(box, other) for other in boxes[:i])


def test_only_the_boxes_change(photographs):
    scene = random_scene("dog.jpg", list(FACTS), Random(1), inset=True, cards=3, augment=False)
    plain, drawn = (np.asarray(draw_scene(s, photographs)) for s in (Scene("dog.jpg"), scene))
    changed = (plain != drawn).any(axis=2)
    inside = np.zeros((SIZE, SIZE), bool)
    for left, top, right, bottom in [scene.inset_box, *(card.box for card in scene.cards)]:
        inside[top:bottom, left:right] = True
        assert changed[top:bottom, left:right].mean() > 0.3
    assert not changed[~inside].any()


def test_a_flipped_crop_is_the_photograph_s(photographs):
    half = Image.new("RGB", (100, 50), "white")
    half.paste("black", (0, 0, 50, 50))
    crop = (0.0, 0.0, 0.4, 1.0)
    assert np.asarray(draw_scene(Scene("a", crop=crop), {"a": half})).max() < 40
    mirrored = np.asarray(draw_scene(Scene("a", flipped=True), {"a": half}))
    assert mirrored[:, :100].min() > 200
    assert mirrored[:, -100:].max() < 40


@pytest.mark.parametrize(
    "box", [(0, 0, 14, 14), (3, 5, 60, 33), (300, 310, 336, 336), (10, 10, 17, 13), (11, 11, 31, 31)]
)
def test_cells_are_those_that_share_a_quarter(box):
    left, top, right, bottom = box
    filled = np.zeros((SIZE, SIZE))
    filled[top:bottom, left:right] = 1
    shared = filled.reshape(GRID, PATCH, GRID, PATCH).sum((1, 3)).flatten()
    most = min(right - left, PATCH) * min(bottom - top, PATCH)
    assert cells([box]) == np.flatnonzero(shared * 4 >= most).tolist()


@pytest.mark.parametrize("seed", range(6))
def test_questions_about_an_inset_are_answered_by_it_alone(seed):
    counts, rng = ThingCounts(FACTS.values()), Random(seed)
    scene = Scene("dog.jpg", inset="boat.jpg", inset_box=(10, 10, 110, 110))
    asked = [q for q in ask(scene, FACTS, counts, rng, existence=2, others=2) if q.kind == "existence"]
    there, not_there = ({q.about for q in asked if q.answer == word} for word in ("yes", "no"))
    assert len(there) == len(not_there)
    both = set(FACTS["dog.jpg"].present) | set(FACTS["boat.jpg"].present)
    open_ = FACTS["dog.jpg"].unsure | FACTS["boat.jpg"].unsure
    assert there <= both
    assert not not_there & (both | open_)
    for question in asked:
        if question.answer == "yes":
            assert bool(question.boxes) == (question.about not in FACTS["dog.jpg"].present)


def test_a_single_card_is_asked_by_what_it_carries_and_several_by_their_colour():
    word, number = Card("tiger", "red", (0, 0, 60, 30)), Card("42", "blue", (100, 0, 160, 30))
    (asked,) = card_questions(Scene("a", cards=(word,)))
    assert (asked.kind, asked.text, asked.answer) == ("read word", "what word is written?", "tiger")
    two = card_questions(Scene("a", cards=(word, number)))
    assert [(q.text, q.answer, q.boxes) for q in two] == [
        ("what is written on the red card?", "tiger", (word.box,)),
        ("what is written on the blue card?", "42", (number.box,)),
    ]

"""Scenes and questions: reproducible, unambiguous, and answered from what is drawn."""

from collections import Counter

import numpy as np
import pytest

from vlprune.pocket import balanced_questions, images, questions, scenes
from vlprune.pocket.render import PALETTE, pack_scenes
from vlprune.pocket.world import CELLS, COLORS, KINDS, SEEDS, SIZE, vocabulary

MANY = scenes("validation", 300)


def test_splits_are_fixed_and_apart():
    assert scenes("test", 3) == scenes(SEEDS["test"], 3)
    assert scenes("test", 5)[3:] == scenes("test", 2, start=3)
    assert len({scenes(split, 1)[0].things for split in SEEDS}) == 3
    # the very first test scene, so that a change of the stream cannot pass unseen
    first = scenes("test", 1)[0]
    assert [(t.color, t.shape, t.digit) for t in first.things[:3]] == [
        ("red", "star", 5),
        ("pink", "circle", 1),
        ("pink", "square", 2),
    ]


def test_unknown_split_and_kind_are_named():
    with pytest.raises(ValueError, match=r"seed='tset': a whole number, or one of train, validation, test\."):
        scenes("tset", 1)
    with pytest.raises(ValueError, match=r"kinds=\['colour'\]: choose from exist, color, .*, not 'colour'"):
        questions(MANY[0], ["colour"])


def test_scenes_span_easy_and_crowded_and_nothing_overlaps():
    sizes = Counter(len(scene.things) for scene in MANY)
    assert set(sizes) == set(range(3, 13))
    for scene in MANY:
        for i, a in enumerate(scene.things):
            assert a.radius >= 10.5 - 1e-9
            assert 0 < a.x < SIZE
            assert 0 < a.y < SIZE
            for b in scene.things[:i]:
                assert np.hypot(a.x - b.x, a.y - b.y) > a.radius + b.radius


def test_answers_follow_from_the_scene():
    """Each answer is worked out again from the words of the question alone."""
    for scene in MANY:
        for q in questions(scene):
            words = q.text.removesuffix("?").split()
            named = [
                t
                for t in scene.things
                if (not (c := set(words) & set(COLORS)) or t.color in c)
                and all(w != s or t.shape == s for w in words for s in SHAPES_AND_PLURALS.get(w, ()))
                and (not words[-1].isdigit() or t.digit == int(words[-1]))
            ]
            if q.kind == "exist":
                assert q.answer == ("yes" if named else "no")
            elif q.kind == "count":
                plural = [t for t in scene.things if t.color in words or f"{t.shape}s" in words]
                assert q.answer == str(len(plural))
            else:
                (thing,) = named
                cell = CELLS[3 * int(thing.y // 64) + int(thing.x // 64)]
                truth = {"color": thing.color, "shape": thing.shape, "digit": str(thing.digit), "where": cell}
                assert q.answer == truth[q.kind]
                assert scene.things[q.about[0]] is thing


SHAPES_AND_PLURALS = {s: (s,) for s in ("circle", "square", "triangle", "diamond", "star", "cross", "heart", "bar")}


def test_no_answer_can_be_guessed():
    answers = {kind: Counter(q.answer for s in MANY for q in questions(s, [kind])) for kind in KINDS}
    assert 0.4 < answers["exist"]["yes"] / answers["exist"].total() < 0.6
    for kind in ("color", "shape", "digit", "where"):
        assert max(answers[kind].values()) / answers[kind].total() < 0.25
    # "no" is asked of a colour and a shape that are both there, apart, wherever the scene allows it
    hard = [
        q
        for s in MANY
        for q in questions(s, ["exist"])
        if q.answer == "no" and {t.color for t in s.things} & set(q.text.split())
    ]
    assert len(hard) > 0.9 * answers["exist"]["no"]


def test_balanced_questions_ask_each_kind_equally():
    asked = Counter(q.kind for _, found in balanced_questions("validation", 7) for q in found)
    assert asked == dict.fromkeys(KINDS, 7)


def test_every_word_is_in_the_vocabulary():
    words = set(vocabulary())
    for scene in MANY[:100]:
        for q in questions(scene):
            assert set(q.text.replace("?", " ?").split()) | {q.answer} <= words


def test_things_are_drawn_where_and_as_they_are():
    for scene, picture in zip(MANY[:10], images(MANY[:10])):
        pixels = np.asarray(picture, dtype=np.float32) / 255
        assert pixels.shape == (SIZE, SIZE, 3)
        for thing in scene.things:
            x, y, r = round(thing.x), round(thing.y), int(thing.radius)
            patch = pixels[max(0, y - r) : y + r, max(0, x - r) : x + r].reshape(-1, 3)
            near = np.abs(patch - np.array(PALETTE[COLORS.index(thing.color)])).max(1) < 0.1
            assert near.sum() > 0.2 * thing.radius**2, (scene.name, thing)


def test_pack_keeps_one_row_a_thing():
    things, background = pack_scenes(MANY[:2])
    assert things.shape == (2, 12, 8)
    assert background.shape == (2, 19)
    assert (things[0, len(MANY[0].things) :] == 0).all()

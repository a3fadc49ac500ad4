"""Training pictures: the same for a number whatever came before, with hints and patterns that leave answers right."""

from random import Random

import pytest
import torch

from tests.support.photo_parts import write_photographs
from vlprune.pocket.photo_data import (
    CONCEPTS,
    Plan,
    TrainingSet,
    answerable,
    concept_labels,
    places_to_look,
    read_splits,
    unseen_scenes,
    visible_tokens,
)
from vlprune.pocket.photo_questions import Question, ThingCounts, existence_question
from vlprune.pocket.photo_scenes import Card, Scene, cells

BOX = (28, 28, 84, 56)
CARD = Question("read word", "what word is written?", "tiger", "word", (BOX,))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_photographs(tmp_path_factory.mktemp("photographs"))


def training_set(folder, **changes):
    plan = Plan(**{"batch": 2, "captions": 1, "hints": 4, "patterns": 0.5, **changes})
    return TrainingSet(folder / "photos", read_splits(folder / "text" / "captions.txt")["train"], 0, plan)


def test_an_example_does_not_depend_on_those_before(folder):
    forward = [training_set(folder)[i] for i in range(12)]
    again = training_set(folder)
    for i in reversed(range(12)):
        example = again[i]
        assert example.questions == forward[i].questions
        for name in ("pixels", "seen", "look", "labels"):
            assert torch.equal(getattr(example, name), getattr(forward[i], name))
        assert example.look.shape == (len(example.questions), 576)


def test_the_first_steps_describe_and_later_ones_ask(folder):
    examples = training_set(folder, captions=3)
    assert {q.kind for i in range(6) for q in examples[i].questions} == {"caption"}
    later = [q.kind for i in range(6, 40) for q in examples[i].questions]
    assert "existence" in later
    assert "read card" in later


def test_every_second_step_hides_tokens_if_asked_to(folder):
    hidden = [not training_set(folder, captions=0)[i].seen.all() for i in range(40)]
    assert any(hidden)
    assert not any(hidden[i] for i in range(40) if i // 2 % 2 == 0)
    assert all(training_set(folder, captions=0, patterns=0)[i].seen.all() for i in range(8))


def test_a_hint_shows_the_place_and_leaves_other_questions_alone():
    other, rng = existence_question("dog", True), Random(0)
    for _ in range(20):
        look = places_to_look([CARD, other], rng, chance=1.0)
        assert look[0, cells([BOX])].all()
        assert not look[0].all()
        assert look[1].all()
    assert places_to_look([CARD, other], rng, chance=0.0).all()


def test_what_cannot_be_read_is_not_asked_and_few_tokens_are_no_sign_of_an_answer():
    things = [existence_question("boat", True, boxes=(BOX,)), existence_question("dog", False)]
    colour = Question("colour", "what colour is the dog?", "black", "dog")
    seen = torch.zeros(576, dtype=torch.bool)
    assert answerable([CARD, *things, colour], seen) == things
    seen[cells([BOX])] = True
    assert answerable([CARD, *things, colour], seen) == [CARD, *things]
    seen[cells([BOX])[: len(cells([BOX])) // 2]] = False  # half of it: nobody can say
    assert answerable([CARD, *things], seen) == things
    seen[200:] = True
    assert answerable([CARD, *things, colour], seen) == [*things, colour]


def test_patterns_leave_from_16_to_400_tokens_and_as_often_few_as_many():
    scene = Scene("a", cards=(Card("tiger", "red", BOX),))
    counts = torch.tensor([int(visible_tokens(scene, Random(seed)).sum()) for seed in range(600)])
    assert (int(counts.min()), int(counts.max())) <= (20, 400)
    assert counts.min() >= 16
    assert abs((counts <= 32).float().mean() - 0.215) < 0.06  # ln 2 / ln 25
    assert abs((counts >= 200).float().mean() - 0.215) < 0.06


def test_a_pattern_around_something_shows_it_whole():
    scene = Scene("a", cards=(Card("tiger", "red", BOX),))
    patterns = [visible_tokens(scene, Random(seed)) for seed in range(100)]
    assert sum(bool(seen[cells([BOX])].all()) and seen.float().mean() < 0.1 for seen in patterns) > 5


def test_as_many_yes_as_no_whatever_a_pattern_leaves(folder):
    examples = training_set(folder, captions=0, patterns=1.0)
    answers = [q.answer for i in range(40) for q in examples[i].questions if q.kind == "existence"]
    assert answers.count("yes") == answers.count("no") > 20


def test_labels_say_what_is_there_and_what_may_be(folder):
    facts = read_splits(folder / "text" / "captions.txt")["train"]
    labels = concept_labels(Scene("0.jpg", cards=(Card("42", "red", BOX),)), facts)
    said = {name: int(labels[i]) for name, i in CONCEPTS.items()}
    assert [said[n] for n in ("dog", "snow", "red card", "number")] == [1, 1, 1, 1]
    assert said["cat"] == -1  # "an animal"
    assert said["boat"] == said["word"] == said["blue card"] == 0


def test_unseen_scenes_are_of_their_split_and_balanced(folder):
    splits = read_splits(folder / "text" / "captions.txt")
    counts = ThingCounts(splits["train"].values())
    scenes = unseen_scenes(splits["dev"], counts, 5, seed=1)
    assert scenes == unseen_scenes(splits["dev"], counts, 5, seed=1)
    assert {scene.photo for scene, _ in scenes} <= set(splits["dev"])
    answers = [q.answer for _, asked in scenes for q in asked if q.kind == "existence"]
    assert answers.count("yes") == answers.count("no") > 0
    assert {q.kind for scene, asked in scenes if len(scene.cards) > 1 for q in asked} == {"read card"}

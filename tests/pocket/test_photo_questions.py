"""Questions made from captions: balanced, never about what captions leave open."""

from collections import Counter
from random import Random

from vlprune.pocket.photo_questions import (
    THINGS,
    ThingCounts,
    caption_questions,
    existence_question,
    read_captions,
    read_photograph,
)


def photograph(*captions):
    return read_photograph("1.jpg", captions)


def test_a_word_that_may_mean_a_thing_leaves_it_open():
    photo = photograph("An animal in the yard .", "A boy throws a toy .")
    assert "dog" in photo.unsure
    assert "dog" not in photo.present
    assert "grass" in photo.unsure  # a yard may have grass
    assert set(photo.present) == {"person", "boy", "child", "toy"}
    assert not photo.unsure & set(photo.present)


def test_captions_that_disagree_or_mix_colours_say_nothing():
    assert photograph("A black dog .", "A white dog .").colours == {}
    mixed = photograph("A black and white dog .")
    assert mixed.colours == {"dog": "mixed"}
    assert [q.kind for q in caption_questions(mixed)] == []
    assert photograph("A grey car .").colours == {"car": "gray"}


def test_numbers_need_two_captions_that_agree():
    assert photograph("Two dogs run .", "Two dogs .").numbers == {"dog": "two"}
    assert photograph("Two dogs run .").numbers == {}
    assert photograph("Two dogs run .", "Three dogs .").numbers == {}
    several = photograph("Dogs run .", "Dogs in snow .")
    assert not [q for q in caption_questions(several) if q.kind == "number"]


def test_the_commonest_action_is_the_answer_and_others_are_accepted():
    photo = photograph("The dog jumps .", "A dog is running .", "A dog runs .")
    (asked,) = (q for q in caption_questions(photo) if q.kind == "action")
    assert (asked.text, asked.answer, asked.accepted) == ("what is the dog doing?", "running", ("running", "jumping"))


def test_absent_things_are_drawn_by_how_often_they_come_and_with_what():
    photos = [photograph("A dog with a ball .")] * 8 + [photograph("A boat .")] * 2 + [photograph("A tent .")] * 20
    counts, rng = ThingCounts(photos), Random(0)
    popular = Counter(counts.draw_absent(["dog"], ["ball", "boat", "tent"], "popular", rng) for _ in range(600))
    assert popular["tent"] > popular["ball"] > popular["boat"]
    near = Counter(counts.draw_absent(["dog"], ["ball", "boat", "tent"], "co-occurring", rng) for _ in range(200))
    assert near["ball"] == 200


def test_no_answer_is_asked_for_more_than_half_the_time():
    one, two, three = (photograph(*[f"{said} run ."] * 2) for said in ("A dog", "Two dogs", "Three dogs"))
    photos, rng = [one] * 300 + [two] * 60 + [three] * 40, Random(0)
    counts = ThingCounts(photos)
    asked = [q for p in photos for q in caption_questions(p) if q.kind == "number"]
    kept = Counter(q.answer for q in asked if rng.random() < counts.share_to_ask(q))
    assert kept["two"] == 60
    assert kept["three"] == 40
    assert 70 <= kept["one"] <= 130
    assert ThingCounts([one]).share_to_ask(asked[0]) == 1.0  # the only answer there is
    assert ThingCounts([two]).share_to_ask(asked[0]) == 1.0  # "one" comes in another split alone


def test_existence_questions_are_english():
    assert existence_question("dog", True).text == "is there a dog in the picture?"
    assert existence_question("glasses", False).text == "are there glasses in the picture?"
    assert existence_question("snow", False).text == "is there snow in the picture?"
    assert all(existence_question(thing, True).about == thing for thing in THINGS)


def test_lines_without_a_caption_are_passed_over():
    assert read_captions("\nno tab here\n1.jpg#0\tA dog .\n") == {"1.jpg": ["A dog ."]}

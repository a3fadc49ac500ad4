"""Questions about photographs with captions: balanced, of their split, about what the picture really shows."""

import numpy as np
import pytest

from tests.support.photo_parts import write_photographs
from vlprune.errors import UserError
from vlprune.evaluation.captioned_photos import PhotoQuestion, is_caption_list, photo_questions
from vlprune.evaluation.reference_methods import AskedPlace, Oracle, method_for_questions, oracle_order
from vlprune.pocket.photo_questions import CARD_COLOURS


@pytest.fixture(scope="module")
def captions(tmp_path_factory):
    return write_photographs(tmp_path_factory.mktemp("photographs")) / "text" / "captions.txt"


@pytest.fixture(scope="module")
def asked(captions):
    return photo_questions(captions, "validation", 5)


def test_a_list_of_captions_is_known_by_its_first_line(captions, tmp_path):
    assert is_caption_list(captions)
    other = tmp_path / "other.txt"
    other.write_text("just words\n")
    assert not is_caption_list(other)
    assert not is_caption_list(tmp_path)


def test_questions_are_of_the_split_and_numbered_and_yes_as_often_as_no(captions, asked):
    assert [question.number for question in asked] == list(range(len(asked)))
    assert asked == photo_questions(captions, "validation", 5)
    names = (captions.parent / "Flickr_8k.devImages.txt").read_text().split()
    assert {question.drawn.photo for question in asked} <= set(names)
    for kind in ("existence", "inset", "beside inset"):
        answers = [question.answers[0] for question in asked if question.kind == kind]
        assert answers.count("yes") == answers.count("no")
    assert {"existence", "inset", "read card"} <= {question.kind for question in asked}
    assert {q.kind for q in asked if q.place} <= {"inset", "read word", "read number", "read card"}


def test_the_picture_has_the_card_where_the_question_says(asked):
    cards = [question for question in asked if question.kind.startswith("read")]
    assert cards
    for question in cards:
        pixels = np.asarray(question.image())
        (left, top, right, bottom) = question.boxes[0]
        card = next(card for card in question.drawn.cards if card.box == question.boxes[0])
        assert pixels.shape == (336, 336, 3)
        assert (pixels[top + 1, left + 1] == CARD_COLOURS[card.colour]).all()
        middle = (top + bottom) // 2 // 14 * 24 + (left + right) // 2 // 14
        assert middle in question.place


def test_the_oracle_begins_with_the_place_and_the_place_alone_is_just_that(asked):
    question = next(question for question in asked if question.kind == "inset")
    order = oracle_order(question)
    assert sorted(order) == list(range(576))
    count = len(question.place)
    assert set(order[:count]) == set(question.place)
    inside = method_for_questions(AskedPlace(keep=1.0), [question], seed=0)
    outside = method_for_questions(AskedPlace(keep=1.0, inside=False), [question], seed=0)
    assert (inside.keep, outside.keep) == (count, count)
    assert set(inside.orders[0]) == set(question.place)
    assert len(set(outside.orders[0])) == count
    assert not set(outside.orders[0]) & set(question.place)
    nowhere = next(question for question in asked if question.kind == "existence")
    with pytest.raises(ValueError, match="nobody knows where"):
        method_for_questions(Oracle(keep=16), [nowhere], seed=0)


@pytest.mark.parametrize("place", ["text/Images", "Flicker8k_Dataset", "text"])
def test_where_photographs_are_found(captions, tmp_path, place):
    folder = write_photographs(tmp_path / "copy")
    expected = photo_questions(captions, "validation", 2)
    (folder / place).mkdir(exist_ok=True)
    for one in list((folder / "photos").iterdir()):
        one.rename(folder / place / one.name)
    found = photo_questions(folder / "text" / "captions.txt", "validation", 2)
    assert [question.text for question in found] == [question.text for question in expected]
    assert {question.path.parent.resolve() for question in found} == {folder / place}


def test_what_is_missing_is_said(captions, tmp_path):
    folder = write_photographs(tmp_path / "copy")
    lost = folder / "photos" / "7.jpg"
    lost.unlink()
    with pytest.raises(UserError, match=r"there is no photograph '7\.jpg' in"):
        photo_questions(folder / "text" / "captions.txt", "validation", 2)
    for one in (folder / "photos").iterdir():
        one.unlink()
    with pytest.raises(UserError, match=r"there is no photograph '4\.jpg' beside it, nor in photos"):
        photo_questions(folder / "text" / "captions.txt", "validation", 2)
    (folder / "text" / "Flickr_8k.devImages.txt").write_text("4.jpg\n")
    with pytest.raises(UserError, match="1 photographs of the validation split have captions; it takes two"):
        photo_questions(folder / "text" / "captions.txt", "validation", 2)
    (folder / "text" / "Flickr_8k.testImages.txt").unlink()
    with pytest.raises(UserError, match=r"there is no list '.*testImages\.txt' of a split"):
        photo_questions(folder / "text" / "captions.txt", "validation", 2)


def test_letters_that_are_no_utf_8(captions, tmp_path):
    folder = write_photographs(tmp_path / "copy")
    text = folder / "text" / "captions.txt"
    asked = photo_questions(text, "validation", 2)
    text.write_bytes(text.read_bytes() + b"nobody.jpg#0\ta caf\xe9 .\n")
    assert [one.text for one in photo_questions(text, "validation", 2)] == [one.text for one in asked]


def test_a_question_is_an_image_question_with_its_own_picture(asked):
    inset = next(question for question in asked if question.drawn.inset)
    plain = PhotoQuestion(0, "x", "existence", "?", ("yes",), path=inset.path, drawn=asked[0].drawn)
    assert inset.image_size() == inset.image().size == (336, 336)
    assert plain.scene is None

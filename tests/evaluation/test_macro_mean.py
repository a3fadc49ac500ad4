"""The mean over kinds, and MME's own score in it."""

import pytest

from vlprune.evaluation.macro_mean import kind_scores, macro_mean
from vlprune.evaluation.questions import ImageQuestion


def asked(*kinds_and_images):
    return [ImageQuestion(i, image, kind, "?", ("yes",)) for i, (kind, image) in enumerate(kinds_and_images)]


def test_kinds_count_the_same_however_many_questions_they_have():
    questions = asked(("a", "1"), ("a", "1"), ("a", "2"), ("b", "2"))
    right = [True, False, False, True]
    assert kind_scores(questions, right) == {"a": pytest.approx(1 / 3), "b": 1.0}
    assert macro_mean(questions, right) == pytest.approx(2 / 3)  # pooled it would be 1/2


def test_mme_is_its_points_by_20():
    """Ten subtasks of two images, with two questions each: 100 points for accuracy, 100 for whole images."""
    names = [f"MME/{name}" for name in "abcdefghij"]
    questions = asked(*((name, image) for name in names for image in ("1", "1", "2", "2")), ("gqa", "3"))
    right = [True, True, True, False] * 10 + [False]
    points = 10 * (75 + 50)  # of 2,000
    assert kind_scores(questions, right) == {"gqa": 0.0, "mme": pytest.approx(points / 20 / 100)}
    assert macro_mean(questions, right) == pytest.approx(points / 20 / 100 / 2)


def test_mme_in_one_kind():
    questions = asked(("mme", "1"), ("mme", "1"), ("mme", "2"), ("mme", "2"))
    assert kind_scores(questions, [True] * 4) == {"mme": 1.0}
    assert kind_scores(questions, [True, True, False, False])["mme"] == pytest.approx((50 + 50) / 200)
    assert kind_scores(questions, [True, False, True, False])["mme"] == pytest.approx(50 / 200)

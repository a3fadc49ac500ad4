"""Long titles, and titles in other scripts."""

import warnings

import torch
from PIL import Image

from vlprune.record import Record
from vlprune.show import save_contact_sheet, save_picture
from vlprune.show.titles import TITLE_LINES, fit_title

RECORD = Record(kept=torch.tensor([0, 3]), before=4, after=2, grid=(2, 2))
IMAGE = Image.new("RGB", (32, 32))


def save(path, title):
    """What was warned of while a picture with this title was drawn."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        save_picture(path, IMAGE, [RECORD], titles=[title])
        save_contact_sheet(path, IMAGE, {"script": RECORD}, title=title)
    return [str(warning.message) for warning in caught]


def test_a_long_title_stays_within_the_picture(tmp_path):
    from vlprune.show import draw_picture

    for title in ("why is that so? " * 20, "word" * 80):
        figure = draw_picture(IMAGE, [RECORD], titles=[title])
        figure.draw_without_rendering()
        (drawn,) = [text for strip in figure.subfigs for text in strip.texts]
        assert drawn.get_window_extent().x1 <= figure.bbox.x1
        assert drawn.get_text().count("\n") == TITLE_LINES - 1
        assert save(tmp_path / "long.png", title) == []


def test_the_answer_is_never_cut():
    """However long the question is, and however long the answer."""
    question = "is the thing beside the circle " * 40 + "red?"
    short, long = "yes, it is", "no, it is blue as the sky " * 12
    for asked in (question, "颜色是什么" * 60, "word" * 80):
        for answer in (short, long.strip()):
            title = fit_title(f"{asked} → {answer}", 6.0, 11)
            assert title.replace("\n", " ").endswith(f" → {answer}")
            assert " ... " in title.replace("\n", " ")
            assert title[:10] == asked[:10]
            assert (title.count("\n") == TITLE_LINES - 1) == (answer == short)
    assert fit_title(f"{question} → yes", 6.0, 11).replace("\n", " ").endswith("red? → yes")


def test_wide_characters_take_twice_the_room():
    assert len(fit_title("颜" * 90, 5.0, 11).splitlines()[0]) == len(fit_title("a" * 90, 5.0, 11).splitlines()[0]) // 2


def test_one_line_names_the_characters_that_cannot_be_drawn(tmp_path, monkeypatch):
    monkeypatch.setattr("vlprune.show.titles.FONTS", ("DejaVu Sans",))  # which has no Chinese
    told = save(tmp_path / "other.png", "颜色 颜 مرحبا → red")
    assert told == ["vlprune: no font of this machine can draw 颜 色 in the picture."] * 2


def test_a_character_is_drawn_by_the_first_font_that_has_it(tmp_path, monkeypatch):
    monkeypatch.setattr("vlprune.show.titles.FONTS", ("DejaVu Sans", "a font of nobody", "DejaVu Sans Mono"))
    assert save(tmp_path / "other.png", "what is ⍉? → red") == []  # which only the last one has

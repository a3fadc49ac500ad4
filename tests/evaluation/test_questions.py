"""Questions from files, and when an answer is right."""

import json
from dataclasses import replace

import pytest
from PIL import Image

from vlprune.errors import UserError
from vlprune.evaluation.questions import is_right, pocket_questions, read_questions


@pytest.fixture
def folder(tmp_path):
    Image.new("RGB", (20, 10), "red").save(tmp_path / "red.png")
    return tmp_path


def write(folder, *lines):
    path = folder / "data.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines))
    return path


GOOD = {"image": "red.png", "question": "what color?", "answer": "red"}


def test_a_file_of_questions(folder):
    several = {**GOOD, "answer": ["red", "crimson"], "kind": "color"}
    questions = read_questions(write(folder, GOOD, "", several))
    assert [(question.number, question.kind, question.answers) for question in questions] == [
        (0, "all", ("red",)),
        (1, "color", ("red", "crimson")),
    ]
    assert questions[0].image().size == (20, 10)
    (zero,) = read_questions(write(folder, {**GOOD, "answer": 0}))
    assert zero.answers == ("0",)


def test_files_of_other_editors(folder):
    """A mark of the byte order in front, lines that end as on Windows, and a separator of Unicode inside a text."""
    odd = json.dumps({**GOOD, "question": "a\u2028b\x85c?"}, ensure_ascii=False)
    path = folder / "data.jsonl"
    path.write_bytes(("\ufeff" + odd + "\r\n" + json.dumps(GOOD) + "\r\n").encode())
    assert [question.text for question in read_questions(path)] == ["a\u2028b\x85c?", "what color?"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", r"data\.jsonl, line 2: not JSON \(Expecting property name .* at column 2\)"),
        ({**GOOD, "answer": []}, "line 2: it needs 'answer'"),
        ({**GOOD, "answer": ["red", None]}, "line 2: answer=null: a text with letters or digits, a number"),
        ({**GOOD, "answer": ["red", "?"]}, r'line 2: answer="\?": a text with letters or digits, a number'),
        ({**GOOD, "answer": {"a": 1}}, 'line 2: answer={"a": 1}: a text'),
        ({**GOOD, "answer": True}, "line 2: answer=true: a text"),
        ({**GOOD, "question": 5}, "line 2: question=5: text, as in"),
        ({**GOOD, "image": ["red.png"]}, r'line 2: image=\["red.png"\]: text, as in'),
        ({**GOOD, "kind": 5}, "line 2: kind=5: text, as in"),
        ({"image": "red.png", "question": "what?"}, "line 2: it needs 'answer'"),
        ({**GOOD, "question": ""}, "line 2: it needs 'question'"),
        ("[1]", "line 2: not an object, as in"),
        ({**GOOD, "video": "a.mp4"}, "line 2: it has 'image' and 'video': a question is about one of them"),
        ({"video": "a.mp4", "question": "what?", "answer": "x"}, "line 2: there is no video .*a.mp4"),
        ({"video": 5, "question": "what?", "answer": "x"}, "line 2: video=5: text, as in"),
        ({**GOOD, "boxes": [1, 2, 3, 4]}, r"line 2: boxes=\[1, 2, 3, 4\]: a list of boxes around what is asked about"),
        ({**GOOD, "boxes": [[5, 0, 5, 9]]}, r"line 2: boxes=\[\[5, 0, 5, 9\]\]: a list of boxes"),
        ({**GOOD, "boxes": [[0, 0, "5", 9]]}, r"line 2: boxes=.*: a list of boxes"),
        ({**GOOD, "image": "blue.png"}, "line 2: there is no image .*blue.png"),
    ],
)
def test_a_bad_line_is_named(folder, line, says):
    with pytest.raises(UserError, match=says):
        read_questions(write(folder, GOOD, line))


def test_files_that_are_none(folder):
    with pytest.raises(UserError, match="has no lines"):
        read_questions(write(folder))
    with pytest.raises(UserError, match="cannot be read"):
        read_questions(folder / "none.jsonl")
    with pytest.raises(UserError, match="is not text"):
        read_questions(folder / "red.png")
    with pytest.raises(UserError, match="cannot be read"):
        read_questions(folder)  # a folder has no answers


def test_a_folder_of_images_where_no_answers_are_needed(folder):
    (question,) = read_questions(folder, need_answers=False)
    assert question.image_name == "red.png"
    (folder / "empty").mkdir()
    with pytest.raises(UserError, match="has no images"):
        read_questions(folder / "empty", need_answers=False)


def test_a_broken_image_is_told(folder):
    (folder / "red.png").write_bytes(b"not an image")
    (question,) = read_questions(write(folder, GOOD))
    with pytest.raises(UserError, match=r"red\.png"):
        question.image()


@pytest.mark.parametrize(
    ("said", "answers", "exact", "contains"),
    [
        ("Red.", ["red"], True, True),
        ("it is red", ["red"], False, True),
        ("predominantly", ["red"], False, False),
        ("top-left", ["top-left"], True, True),
        ("top-left", ["top"], False, False),
        ("", ["red"], False, False),
        ("blue", ["red", "Blue"], True, True),
        ("Caf\u00e9!", ["cafe\u0301"], True, True),  # one sign, or two that look like it
        ("\u0939\u093e\u0901", ["\u0939\u0940"], False, False),  # which differ in their vowel's mark only
    ],
)
def test_right_answers(said, answers, exact, contains):
    assert is_right(said, answers) is exact
    assert is_right(said, answers, "contains") is contains


def test_pocket_items_are_numbered_and_balanced():
    questions = pocket_questions("validation", 3, start=100)
    assert [question.number for question in questions] == list(range(100, 118))
    assert all(sum(question.kind == kind for question in questions) == 3 for kind in ("exist", "where"))
    assert pocket_questions(1000, 1) != pocket_questions(1001, 1)


def test_videos_and_boxes(folder, film):
    (folder / "frames").mkdir()
    for i in range(5):
        Image.new("RGB", (20, 10), (50 * i, 0, 0)).save(folder / "frames" / f"{i}.png")
    asked = {"question": "what?", "answer": "x"}
    lines = [{"video": film, **asked}, {"video": "frames", **asked}, {**GOOD, "boxes": [[1, 2, 3.5, 4]]}, GOOD]
    first, second, boxed, plain = read_questions(write(folder, *lines), frames=3)
    assert [question.frames for question in (first, second, boxed, plain)] == [3, 3, 0, 0]
    assert first.shown().numbers == [0, 20, 40]
    assert [int(frame[0, 0, 0]) for frame in second.shown().frames] == [0, 50, 150]
    assert second.image().size == (20, 10)  # the first frame
    assert (boxed.boxes, plain.boxes) == (((1, 2, 3.5, 4),), None)
    with pytest.raises(UserError, match="line 2: it needs 'boxes', around what is asked about, in pixels"):
        read_questions(write(folder, lines[2], GOOD), need_boxes=True)
    (nothing,) = read_questions(write(folder, {**GOOD, "boxes": []}), need_boxes=True)
    assert nothing.boxes == ()


def test_a_fixed_resolution(folder):
    (question,) = read_questions(write(folder, GOOD))
    assert replace(question, resolution=32).image().size == (32, 32)
    assert replace(question, resolution=32).image_size() == (20, 10)

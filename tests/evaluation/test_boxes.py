"""The tokens in a box, wherever the processor moves it; and study errors on a file with boxes."""

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from PIL import Image

from tests.support.evaluation_runs import read_lines
from tests.support.tiny_llava import PATCH, SIZE, processor
from vlprune.evaluation.boxes import box_coverage, tokens_in_boxes
from vlprune.evaluation.questions import ImageQuestion, pocket_questions
from vlprune.evaluation.reference_methods import evidence_tokens

GRID = (SIZE // PATCH, SIZE // PATCH)


@pytest.fixture
def ask(tmp_path):
    """A question with boxes about an image of some size."""

    def make(size, *boxes, **options):
        path = tmp_path / f"{size[0]}x{size[1]}.png"
        Image.new("RGB", size, "grey").save(path)
        return ImageQuestion(0, path.name, "all", "?", ("x",), path=path, boxes=boxes, **options)

    return make


def cells(left, top, right, bottom):
    """Tokens of the rows and columns from left and top up to right and bottom."""
    return [row * GRID[1] + column for row in range(top, bottom) for column in range(left, right)]


def test_boxes_of_a_square_image(ask):
    big = (8 * 10, 8 * 10, 24 * 10, 32 * 10)  # ten times the processor's size: columns 1 and 2, rows 1 to 3
    question = ask((SIZE * 10, SIZE * 10), big, (0, 0, SIZE * 10, SIZE * 10))
    found = tokens_in_boxes(processor(), question, GRID)
    assert found[0].tolist() == cells(1, 1, 3, 4)
    assert found[1].tolist() == list(range(36))


def test_the_processor_crops_the_middle(ask):
    """Twice as wide as high: the outer quarters are cut off, and what lies there is no evidence."""
    question = ask((96, 48), (24, 0, 40, 16), (0, 0, 20, 48), (0, 0, 40, 48))
    first, second = tokens_in_boxes(processor(), question, GRID)
    assert first.tolist() == cells(0, 0, 2, 2)
    assert second.tolist() == cells(0, 0, 2, 6)  # the third box; the second is not to be seen


def test_a_small_box_is_the_token_that_has_most_of_it(ask):
    question = ask((48, 48), (17, 25, 19, 26))
    (found,) = tokens_in_boxes(processor(), question, GRID)
    assert found.tolist() == [3 * 6 + 2]
    assert float(box_coverage(processor(), question, GRID).sum()) == pytest.approx(2 / 64, abs=1e-3)


def test_boxes_are_in_pixels_of_the_file_whatever_the_resolution(ask):
    question = ask((96, 48), (0, 0, 48, 24), resolution=48)
    (found,) = tokens_in_boxes(processor(), question, GRID)
    assert found.tolist() == cells(0, 0, 3, 3)


def test_nothing_asked_about_and_patches_and_tiles(ask):
    assert tokens_in_boxes(processor(), ask((48, 48)), GRID) == []

    class Patches:
        def __call__(self, images, return_tensors):
            return {"pixel_values": torch.zeros(16 * len(images), 12)}

    (found,) = tokens_in_boxes(Patches(), ask((40, 20), (0, 0, 20, 10)), (2, 4))
    assert found.tolist() == [0, 1]

    class Tiles:
        def __call__(self, images, return_tensors):
            return {"pixel_values": torch.zeros(len(images), 5, 3, 8, 8)}

    with pytest.raises(Exception, match="cut into tiles"):
        tokens_in_boxes(Tiles(), ask((40, 20), (0, 0, 20, 10)), (2, 4))


def test_study_errors_on_a_file_is_that_on_the_scenes_it_shows(program, tmp_path):
    """Scenes as files, with boxes of the cells that hold the things asked about: the same answers, other evidence."""
    lines = []
    for question in pocket_questions("validation", 2):
        name = f"{question.image_name.replace('/', '-')}.png"
        question.image().save(tmp_path / name)
        boxes = []
        for tokens in evidence_tokens(question):
            rows, columns = tokens // 24, tokens % 24
            corner = (int(columns.min()) * 8, int(rows.min()) * 8)
            boxes.append([*corner, int(columns.max() + 1) * 8, int(rows.max() + 1) * 8])
        line = {"image": name, "question": question.text, "answer": question.answers[0], "kind": question.kind}
        lines.append(line | {"boxes": boxes})
    (tmp_path / "data.jsonl").write_text("\n".join(map(json.dumps, lines)))
    words = ("study", "errors", "--keep", 16)
    code, _, err = program(*words, "--data", tmp_path / "data.jsonl", "--out", "filed")
    assert code == 0, err
    assert program(*words, "--questions", 2, "--out", "drawn")[0] == 0
    filed, drawn = (json.loads(Path(name, "result.json").read_text()) for name in ("filed", "drawn"))
    assert filed["data"]["16"]["wrong"] == drawn["data"]["16"]["wrong"]
    told = [sorted(read_lines(name, "script@16"), key=lambda line: line["q"]) for name in ("filed", "drawn")]
    for one, other, line in zip(*told, lines):
        assert (one["q"], one["answer"]) == (other["q"], other["answer"])
        assert len(one["things"]) == len(line["boxes"]) == len(other["things"])
        # a box holds its thing's tokens, and more
        assert all(a >= b for x, y in zip(one["things"], other["things"]) for a, b in zip(x, y))
    assert "right with the oracle" not in filed["tables"][0]["columns"]
    assert Counter(filed["data"]["16"]["causes"]).total() == filed["data"]["16"]["wrong"]

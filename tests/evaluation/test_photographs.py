"""Photographs with boxes and masks, from every kind of label, and which tokens lie on what."""

import json

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tests.support.photo_folders import write_panoptic_folder, write_yolo_folder
from vlprune.errors import UserError
from vlprune.evaluation.photographs import Region, cover_of_box, drawn_photographs, read_photographs, tokens_on
from vlprune.pocket import scenes

share = st.floats(-0.2, 1.2)


@given(st.tuples(share, share), st.tuples(share, share), st.integers(1, 5), st.integers(1, 5))
def test_cover_of_a_box(across, down, rows, columns):
    """Cell by cell, from the sides' overlaps."""
    (left, right), (top, bottom) = sorted(across), sorted(down)
    found = cover_of_box((left, top, right, bottom), (rows, columns)).view(rows, columns)
    for i in range(rows):
        for j in range(columns):
            wide = max(0.0, min(right, (j + 1) / columns) - max(left, j / columns))
            high = max(0.0, min(bottom, (i + 1) / rows) - max(top, i / rows))
            assert float(found[i, j]) == pytest.approx(wide * high * rows * columns, abs=1e-5)


def test_every_thing_has_a_token():
    """One that covers no patch by half lies on the patch that it covers most."""
    boxes = [(0.0, 0.0, 1.0, 1.0), (0.30, 0.30, 0.31, 0.31), (0.24, 0.6, 0.27, 0.7)]
    on = tokens_on(torch.stack([cover_of_box(box, (4, 4)) for box in boxes]))
    assert on.sum(1).tolist() == [16, 1, 1]
    assert on[1].nonzero().item() == 5
    assert on[2].nonzero().item() == 9
    assert tokens_on(torch.zeros(0, 4)).shape == (0, 4)


def test_yolo(tmp_path):
    found = read_photographs(write_yolo_folder(tmp_path / "data"))
    assert [one.name for one in found] == ["0", "1", "2"]
    for one, scene in zip(found, scenes("validation", 3)):
        assert [region.name for region in one.regions] == [thing.shape for thing in scene.things]
        assert one.image().size == (192, 192)
        boxes = [region.box for region in drawn_photographs("validation", 3)[int(one.name)].regions]
        assert [region.box for region in one.regions] == [pytest.approx(box) for box in boxes]


def test_classes_without_names(tmp_path):
    folder = write_yolo_folder(tmp_path / "data", 1)
    (folder / "data.yaml").unlink()
    assert read_photographs(folder)[0].regions[0].name.startswith("class ")


def test_panoptic_masks(tmp_path):
    (one,) = read_photographs(write_panoptic_folder(tmp_path))
    cat, sky = one.regions
    assert (cat.name, cat.is_thing, sky.name, sky.is_thing) == ("cat", True, "sky", False)
    assert cat.box == (0, 0, 0.25, 1)
    assert one.cover((1, 4)).tolist() == [[1, 0, 0, 0], [0, 0, 1, 1]]


def test_boxes_go_before_segments(tmp_path):
    """COCO's instances say where things are, the panoptic masks where stuff is."""
    write_panoptic_folder(tmp_path)
    image = {"id": 5, "file_name": "one.jpg", "width": 8, "height": 4}
    rows = [{"image_id": 5, "category_id": 3, "bbox": [4, 1, 2, 2], "iscrowd": 0}]
    rows += [{"image_id": 5, "category_id": 3, "bbox": [0, 0, 8, 4], "iscrowd": 1}]
    found = {"images": [image], "annotations": rows, "categories": [{"id": 3, "name": "dog"}]}
    (tmp_path / "instances.json").write_text(json.dumps(found))
    (tmp_path / "captions.json").write_text(json.dumps({"annotations": [{"image_id": 5, "caption": "a cat"}]}))
    (one,) = read_photographs(tmp_path)
    assert one.regions[0] == Region("dog", (0.5, 0.25, 0.75, 0.75))
    assert [region.name for region in one.regions] == ["dog", "sky"]
    (tmp_path / "one.txt").write_text("0 0.5 0.5 0.5 0.5\n")
    with pytest.raises(UserError, match="two files of boxes for one"):
        read_photographs(tmp_path)


def test_refusals(tmp_path):
    with pytest.raises(UserError, match="pass a folder"):
        read_photographs(tmp_path / "nowhere")
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with pytest.raises(UserError, match="no photographs with labels"):
        read_photographs(tmp_path)
    (tmp_path / "a.txt").write_text("0 0.5 0.5 wide\n")
    with pytest.raises(UserError, match=r"a\.txt, line 1: not a class number"):
        read_photographs(tmp_path)
    (tmp_path / "a.txt").write_text("")
    assert read_photographs(tmp_path)[0].regions == ()  # a photograph of nothing
    (tmp_path / "more").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "more" / "a.png")
    with pytest.raises(UserError, match="two photographs that are called a"):
        read_photographs(tmp_path)
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(UserError, match=r"broken\.json cannot be read"):
        read_photographs(tmp_path)

"""Tiles and frames: each token where its piece of the image is."""

import numpy as np
import pytest
import torch
from PIL import Image

from vlprune.models.internvl import tiled_shape
from vlprune.models.llava_next import TiledImage, image_shape
from vlprune.record import Record
from vlprune.show import draw_picture
from vlprune.show.sheet import MAX_SHOWN, lay_out
from vlprune.types import grid_shape, square_shape


def record(shape, **more):
    n = shape.n
    given = {"kept": torch.arange(0, n, 3), "before": n, "after": len(range(0, n, 3)), "grid": shape.grid, **more}
    scores = {"relevance": torch.arange(float(n)), "redundancy": torch.rand(n)}
    return Record(parts=shape.parts, kind=shape.kind, **{**scores, **given})


@pytest.fixture(scope="module")
def model():
    """A LLaVA-NeXT whose base view and tiles have 4 x 4 tokens."""
    from tests.support.families.llava import LlavaNext

    return LlavaNext().model()


def titles(figure):
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]


@pytest.mark.parametrize("size", [(40, 64), (64, 24), (28, 60), (64, 34), (30, 30)])
def test_tiles_lie_over_their_piece_of_the_image(model, size):
    """The wall of tiles is cut into rows and columns anew, from the tokens' numbers alone, and all of it is covered."""
    views = {(40, 64): 5, (64, 24): 3, (28, 60): 3, (64, 34): 5, (30, 30): 2}[size]
    shape = image_shape(model, TiledImage(size, views))
    height, width = size
    sheet = lay_out(Image.new("RGB", (width, height)), record(shape))
    base, *tiles = sheet.cells
    assert len(tiles) == views - 1
    rows = int(shape.lines.max())
    across = (shape.n - 16) // rows
    where = {token: cell.token_box(i) for cell in tiles for i, token in enumerate(cell.tokens)}
    assert sorted(where) == list(range(16, shape.n))
    corner = where[16]
    for token, box in where.items():
        y, x = divmod(token - 16, across)
        assert box.left == pytest.approx(corner.left + x * corner.width)
        assert box.top == pytest.approx(corner.top + y * corner.height)
        assert (box.width, box.height) == pytest.approx((corner.width, corner.height))
    last = where[shape.n - 1]
    assert last.left + last.width == pytest.approx(corner.left + base.box.width)
    assert last.top + last.height == pytest.approx(corner.top + base.box.height)
    assert last.top + last.height == pytest.approx(sheet.pixels.shape[0])


def test_frames_on_a_contact_sheet():
    frames = [Image.new("RGB", (30, 20), (i, 0, 0)) for i in range(64)]
    video = record(grid_shape("video", "frame", (2, 3), count=64))
    sheet = lay_out(frames, video)
    assert len(sheet.cells) == MAX_SHOWN
    for number, cell in enumerate(sheet.cells):
        assert cell.label == str(4 * number + 1)
        assert cell.tokens == list(range(24 * number, 24 * number + 6))
        x, y = int(cell.box.left + cell.box.width / 2), int(cell.box.top + cell.box.height / 2)
        assert round(255 * float(sheet.pixels[y, x, 0])) == 4 * number
    drawn = draw_picture(frames, video)
    assert titles(drawn) == ["16 of 64 frames", "redundancy", "relevance to the question", "kept 128 of 384"]
    kept = next(axes for axes in drawn.axes if "kept" in axes.get_title(loc="left"))
    assert {text.get_text() for text in kept.texts} == {"2 kept"}


def test_maps_of_all_frames_share_one_scale():
    frames = [Image.new("RGB", (30, 20))] * 4
    drawn = draw_picture(frames, record(grid_shape("video", "frame", (2, 3), count=4)))
    relevance = next(axes for axes in drawn.axes if "relevance" in axes.get_title(loc="left"))
    shown = relevance.get_images()[1:]
    assert np.array_equal(np.concatenate([image.get_array().ravel() for image in shown]), np.arange(24.0))
    assert {image.get_clim() for image in shown} == {(0.0, 23.0)}


def test_tiles_and_thumbnail():
    shape = tiled_shape(9, 3)
    views = [Image.new("RGB", (48, 48))] * 3
    assert titles(draw_picture(views, record(shape)))[0] == "2 tiles and a thumbnail"
    assert [cell.label for cell in lay_out(views, record(shape)).cells] == ["1", "2", "thumbnail"]


def test_tiles_of_unknown_arrangement_have_a_map_only():
    sheet = lay_out(Image.new("RGB", (48, 48), (255, 0, 0)), record(tiled_shape(9, 3)))
    assert len(sheet.cells) == 3
    assert np.ptp(sheet.pixels, axis=2).max() == 0  # grey and white: no piece of the image


def test_a_large_image_is_made_smaller():
    sheet = lay_out(Image.new("RGB", (4000, 2000)), record(square_shape("image", "image", 16)))
    assert sheet.pixels.shape == (600, 1200, 3)
    assert sheet.scale == pytest.approx(0.3)


def test_one_image_for_each_part():
    with pytest.raises(ValueError, match="image has 2 entries for 3 tiles or frames"):
        lay_out([Image.new("RGB", (8, 8))] * 2, record(tiled_shape(9, 3)))

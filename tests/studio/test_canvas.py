"""The picture: a rectangle for each token, of the right kind and in the right place."""

import re
from html.parser import HTMLParser

import pytest
import torch
from PIL import Image

from vlprune.record import Record
from vlprune.studio.canvas import available_overlays, draw_canvas
from vlprune.types import grid_shape


class Shapes(HTMLParser):
    """The attributes of all elements, by tag."""

    def __init__(self, html):
        super().__init__()
        self.found = {}
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found.setdefault(tag, []).append(dict(attributes))


@pytest.fixture
def record():
    return Record(
        kept=torch.tensor([1, 4]),
        before=6,
        after=2,
        grid=(2, 3),
        order=torch.tensor([4, 0, 1, 3, -1, -1]),  # the method had stopped
        relevance=torch.tensor([0.0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        parts=grid_shape("image", "image", (2, 3)).parts,
    )


def kinds(html):
    return {int(one["data-token"]): one["class"] for one in Shapes(html).found["rect"]}


def test_kept_and_dropped(record):
    html = draw_canvas(Image.new("RGB", (30, 20)), record)
    assert kinds(html) == {token: "kept" if token in (1, 4) else "gone" for token in range(6)}
    rect = Shapes(html).found["rect"][4]
    assert [float(rect[name]) for name in ("x", "y", "width", "height")] == [10, 10, 10, 10]
    assert rect["data-says"] == "token 4 · row 2, column 2 · kept, choice 1 · relevance 0.8"


def test_the_choices_one_by_one(record):
    shown = [kinds(draw_canvas(Image.new("RGB", (30, 20)), record, step=step)) for step in range(5)]
    assert [[token for token in one if one[token] == "kept"] for one in shown] == [[], [4], [4], [1, 4], [1, 4]]
    assert [[token for token in one if one[token] == "lost"] for one in shown] == [[], [], [0], [0], [0, 3]]


def test_maps(record):
    assert available_overlays(record) == ["kept", "order of choice", "relevance"]
    html = draw_canvas(Image.new("RGB", (30, 20)), record, "relevance")
    colours = [one["style"] for one in Shapes(html).found["rect"]]
    assert len(set(colours)) == 6
    assert (colours[0], colours[5]) == ("fill:#440154", "fill:#fde725")  # the ends of viridis
    assert "relevance to the question" in html
    order = Shapes(draw_canvas(Image.new("RGB", (30, 20)), record, "order of choice")).found["rect"]
    assert [int(one["data-token"]) for one in order if "style" in one] == [1, 4]


def test_picked_tokens_have_a_frame(record):
    html = draw_canvas(Image.new("RGB", (30, 20)), record, picked=[4, 99])
    assert re.findall(r'<path d="([^"]*)"', html) == ["M10 10h10v10h-10z"]


def test_frames_lie_side_by_side():
    parts = grid_shape("video", "frame", (2, 2), count=4).parts
    record = Record(torch.tensor([5]), 16, 1, (8, 2), parts=parts, kind="video")
    html = draw_canvas([Image.new("RGB", (20, 20))] * 4, record)
    shapes = Shapes(html).found
    assert len(shapes["rect"]) == 16
    assert len({(one["x"], one["y"]) for one in shapes["rect"]}) == 16
    assert "frame 2, row 1, column 2" in shapes["rect"][5]["data-says"]


def test_a_screen_reader_is_told_what_it_shows(record):
    (svg,) = Shapes(draw_canvas(Image.new("RGB", (30, 20)), record)).found["svg"]
    assert svg["role"] == "img"
    assert svg["aria-label"].startswith("2 of 6 visual tokens kept")

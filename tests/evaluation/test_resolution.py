"""A fixed resolution: which processors keep it, and how many tokens it makes."""

import pytest
from PIL import Image

from tests.support.evaluation_runs import read_lines, write_questions
from tests.support.family_checkpoints import CASES, processor
from vlprune.errors import UserError
from vlprune.evaluation.load_model import LoadedModel
from vlprune.evaluation.resolution import check_resolution, count_pixels


def tiny(name):
    return LoadedModel(name, CASES[name].model(), processor(name), None)


def test_tiles_of_32_pixels():
    loaded = tiny("llava_next")
    check_resolution(loaded, 32)
    check_resolution(loaded, 64)
    with pytest.raises(
        UserError, match=r"^--resolution 48: llava_next sees such an image in 5 tiles of 32 × 32 pixels, whatever"
    ):
        check_resolution(loaded, 48)


def pixels(images, side):
    return count_pixels(images(images=Image.new("RGB", (side, side)), return_tensors="pt"), images)


def test_the_paper_s_resolutions():
    """LLaVA-NeXT at 672: four tiles and the base view; InternVL3 at 896: four tiles and the thumbnail."""
    import transformers as t

    grids = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    square = {"size": {"shortest_edge": 336}, "crop_size": {"height": 336, "width": 336}}
    seen, tile = pixels(t.LlavaNextImageProcessor(**square, image_grid_pinpoints=grids), 672)
    assert (seen // tile, tile) == (5, 336**2)
    intern = t.GotOcr2ImageProcessor(size={"height": 448, "width": 448}, crop_to_patches=True, max_patches=12)
    seen, tile = pixels(intern, 896)
    assert (seen // tile, tile) == (5, 448**2)
    assert pixels(t.Qwen2VLImageProcessor(), 672) == (672**2, 672**2)


def test_on_the_command_line(program, tmp_path):
    data = write_questions(tmp_path)
    words = ("eval", "--data", data, "--methods", "random", "--keep", 16)
    code, _, err = program(*words, "--resolution", 672)
    assert code == 2
    last = err.splitlines()[-1]
    assert last == "vlprune: --resolution 672: pocket sees such an image at 192 × 192 pixels, whatever its size."
    code, _, err = program(*words, "--resolution", 192, "--out", "same")
    assert code == 0, err
    assert program(*words, "--out", "plain")[0] == 0
    assert read_lines("same", "random@16") == read_lines("plain", "random@16")
    code, _, err = program(*words, "--out", "same")
    assert code == 2
    assert "holds a run with resolution=192, not None" in err
    code, _, err = program(*words, "--frames", 4)
    assert (code, err.splitlines()[-1]) == (
        2,
        "vlprune: --frames 4: it is for videos, and there is none to ask about.",
    )

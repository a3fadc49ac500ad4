import numpy as np
import pytest
import torch
from PIL import Image

from vlprune.record import Record
from vlprune.show import Mark, draw_contact_sheet, draw_picture, save_contact_sheet, save_picture
from vlprune.show.panels import DIMMED

SIDE = 6


@pytest.fixture
def image():
    colours = np.random.default_rng(0).integers(60, 200, (96, 96, 3), dtype=np.uint8)
    return Image.fromarray(colours)


def record(**more):
    order = torch.tensor([35, 0, 7, 14])
    given = dict(redundancy=torch.rand(36), relevance=torch.rand(36), order=order, query="what is it?")
    given |= more
    return Record(kept=torch.tensor([0, 7, 14, 20, 35]), before=36, after=5, grid=(SIDE, SIDE), **given)


def panels(figure):
    return [axes.get_title(loc="left") for axes in figure.axes if axes.get_title(loc="left")]


def test_four_panels(image):
    drawn = draw_picture(image, record())
    assert panels(drawn) == ["image", "redundancy", "relevance to the question", "kept 5 of 36"]
    assert drawn.subfigs[0].get_suptitle() == "what is it?"


def test_a_method_without_scores_has_two(image):
    assert panels(draw_picture(image, record(redundancy=None, relevance=None, order=None))) == ["image", "kept 5 of 36"]


def test_maps_show_the_scores_where_they_lie(image):
    scores = torch.arange(36.0)
    drawn = draw_picture(image, record(relevance=scores))
    shown = drawn.axes[2].get_images()[1]
    assert np.array_equal(shown.get_array(), scores.view(6, 6).numpy())
    assert shown.get_extent() == [0, 96, 96, 0]


def lit_tokens(axes, image):
    """The tokens whose patch is as in the image; all others must be darker."""
    shown, given = axes.get_images()[0].get_array(), np.asarray(image) / 255
    lit = []
    for i in range(SIDE * SIDE):
        y, x = (16 * place for place in divmod(i, SIDE))
        patch, true = shown[y : y + 16, x : x + 16], given[y : y + 16, x : x + 16]
        if np.allclose(patch, true, atol=1e-6):
            lit.append(i)
        else:
            assert np.allclose(patch, DIMMED * true, atol=1e-6)
    return lit


def test_kept_tokens_shine_where_they_lie(image):
    kept = next(axes for axes in draw_picture(image, record()).axes if "kept" in axes.get_title(loc="left"))
    assert lit_tokens(kept, image) == [0, 7, 14, 20, 35]
    assert not kept.patches
    assert not kept.texts


def test_what_is_asked_about_is_circled_in_every_panel(image):
    drawn = draw_picture(image, record(), marks=[[Mark(3, 4, 5)]])
    circles = [axes.patches for axes in drawn.axes if axes.get_title(loc="left")]
    assert [len(patches) for patches in circles] == [2] * 4
    assert {patch.center for patches in circles for patch in patches} == {(3, 4)}


def test_panels_have_titles_of_their_own(image):
    own = [{"relevance": "a $", "kept": "b"}]
    assert panels(draw_picture(image, record(), panel_titles=own)) == ["image", "redundancy", r"a \$", "b"]


def test_rows_titles_marks(image):
    drawn = draw_picture(image, [record(), record()], titles=["one $x$", "two"], marks=[[Mark(3, 4, 5)], []])
    assert [strip.get_suptitle() for strip in drawn.subfigs] == [r"one \$x\$", "two"]
    assert len(panels(drawn)) == 8
    assert len(drawn.axes[0].patches) == 2


@pytest.mark.parametrize("size", [(97, 61), (30, 50)])
def test_images_that_do_not_divide_by_the_grid(size, tmp_path):
    save_picture(tmp_path / "out.png", Image.new("RGB", size), record())


@pytest.mark.parametrize("ending", ["png", "pdf", "svg", "jpg"])
def test_files(image, tmp_path, ending):
    path = tmp_path / f"out.{ending}"
    save_picture(path, image, record())
    assert path.stat().st_size > 1000


def test_low_precision_scores(image):
    draw_picture(image, record(relevance=torch.rand(36).bfloat16()))


def test_wrong_input(image):
    with pytest.raises(ValueError, match="records is empty"):
        draw_picture(image, [])
    with pytest.raises(ValueError, match="titles has 1 entries for 2 records"):
        draw_picture(image, [record(), record()], titles=["one"])


def test_a_ranking_is_a_map_too(image):
    ranked = record(redundancy=None, relevance=None, ranking=torch.rand(36))
    assert panels(draw_picture(image, ranked)) == ["image", "score to rank by", "kept 5 of 36"]


def test_a_contact_sheet_has_a_panel_for_each_method(image):
    records = {f"m{i}": record(relevance=None, redundancy=None) for i in range(7)}
    drawn = draw_contact_sheet(image, records, title="what?", titles={"": "all → $5", "m3": "m3\n5 tokens → red"})
    assert panels(drawn) == [r"all → \$5", "m0", "m1", "m2", "m3\n5 tokens → red", "m4", "m5", "m6"]
    assert drawn.get_suptitle() == "what?"
    kept = drawn.axes[1]
    assert lit_tokens(kept, image) == [0, 7, 14, 20, 35]
    shapes = {axes.get_subplotspec().get_geometry()[:2] for axes in drawn.axes}
    assert shapes == {(2, 4)}


def test_a_contact_sheet_draws_shared_scores_once(image):
    shared, own = torch.rand(36), torch.rand(36)
    records = {
        "a": record(redundancy=None, relevance=shared),
        "b": record(redundancy=None, relevance=shared.bfloat16().float()),
        "c": record(redundancy=None, relevance=shared.clone(), ranking=own),
        "d": record(redundancy=None, relevance=None),
    }
    drawn = draw_contact_sheet(image, records)
    assert panels(drawn)[5:] == [
        "relevance to the question:\na, c",
        "relevance to the question:\nb",
        "score to rank by:\nc",
    ]
    ranked = next(axes for axes in drawn.axes if axes.get_title(loc="left").startswith("score"))
    assert np.array_equal(ranked.get_images()[1].get_array(), own.view(6, 6).numpy())


def test_contact_sheets_as_files(image, tmp_path):
    for ending in ("png", "svg"):
        save_contact_sheet(tmp_path / f"out.{ending}", image, {"a": record()})
        assert (tmp_path / f"out.{ending}").stat().st_size > 1000
    with pytest.raises(ValueError, match="records is empty"):
        draw_contact_sheet(image, {})

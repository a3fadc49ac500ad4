"""Towers by themselves: the tokens and the attention are those of the tower's own code."""

import numpy as np
import pytest
import torch

from tests.support.photo_folders import MEAN, PATCH, PIXELS, STD, save_tower, tiny_tower
from vlprune.errors import UserError
from vlprune.evaluation.photographs import drawn_photographs
from vlprune.evaluation.vision_tower import load_tower

SIDE = PIXELS // PATCH


def pixels(image, size):
    levels = np.asarray(image.resize((size, size), 3), np.float32) / 255
    return torch.from_numpy(((levels - MEAN) / STD).astype(np.float32)).permute(2, 0, 1)


@pytest.mark.parametrize("kind", ["vit", "registers", "clip"])
@pytest.mark.parametrize("size", [PIXELS, 2 * PIXELS])
def test_tokens_and_attention(tmp_path, kind, size):
    tower = load_tower(str(save_tower(kind, tmp_path)), size, "cpu")
    images = [one.image() for one in drawn_photographs("test", 2)]
    view = tower.encode(images)
    own = tiny_tower(kind)
    own = getattr(own, "vision_model", own)
    own.set_attn_implementation("eager")
    more = {} if kind == "registers" else {"interpolate_pos_encoding": True}
    with torch.no_grad():
        given = torch.stack([pixels(image, size) for image in images])
        out = own(given, output_hidden_states=True, output_attentions=True, **more)
    n = (size // PATCH) ** 2
    assert view.grid == (size // PATCH, size // PATCH)
    torch.testing.assert_close(view.features, out.hidden_states[-2][:, -n:], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(view.attention, out.attentions[-2].mean(1)[:, 0, -n:], atol=1e-5, rtol=1e-4)
    assert view.keys.shape[:2] == (2, n)
    assert view.project(view.tower) is view.tower


def test_pixels_if_not_said_are_the_processors(tmp_path):
    assert load_tower(str(save_tower("registers", tmp_path)), None, "cpu").grid == (SIDE, SIDE)
    assert load_tower("pocket", None, "cpu").grid == (24, 24)


def test_refusals(tmp_path):
    with pytest.raises(UserError, match=r"^--pixels 50: the patches of .* are 8 pixels wide, so choose a multiple"):
        load_tower(str(save_tower("vit", tmp_path)), 50, "cpu")
    with pytest.raises(UserError, match="--tower"):
        load_tower(str(tmp_path / "nowhere"), None, "cpu")

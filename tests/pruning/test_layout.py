"""The arithmetic of shortened prompts."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vlprune.models import EncodedImage
from vlprune.pruning.layout import cached_beginning, drop_columns, join_layouts, keep_all
from vlprune.pruning.prompt_images import locate_images
from vlprune.types import square_shape

KIND = {"pad": 0, "text": 1, "drop": 2}


def columns(ids):
    return torch.arange(ids.shape[1]).expand(ids.shape)


def images(*lengths):
    return [(9, [EncodedImage(square_shape("image", "image", length)) for length in lengths])]


@st.composite
def prompts(draw):
    """Rows of text and droppable tokens, padded to one length on one side; ids are unique and not 0."""
    rows = draw(st.lists(st.lists(st.sampled_from(["text", "drop"]), min_size=1, max_size=9), min_size=1, max_size=4))
    side, extra = draw(st.sampled_from(["left", "right"])), draw(st.integers(0, 2))
    width = max(map(len, rows)) + extra
    filled = [
        ["pad"] * (width - len(row)) + row if side == "left" else row + ["pad"] * (width - len(row)) for row in rows
    ]
    return side, filled


@settings(max_examples=200, deadline=None)
@given(prompts())
def test_every_kept_token_stays_in_order(drawn):
    side, rows = drawn
    kinds = torch.tensor([[KIND[kind] for kind in row] for row in rows])
    mask, drop = (kinds != 0).long(), kinds == 2
    ids = (torch.arange(kinds.numel()).view(kinds.shape) + 1) * mask
    lost, real = drop.sum(1).tolist(), mask.sum(1).tolist()
    layout = drop_columns(ids, mask, drop, columns(ids), lost, real)
    short = layout.gather(ids)
    for row in range(len(rows)):
        kept = ids[row][(kinds[row] == 1)].tolist()
        assert short[row][layout.mask[row] == 1].tolist() == kept
        if any(lost):
            run = layout.mask[row].diff()
            assert (run >= 0).all() if side == "left" or bool(mask.all()) else (run <= 0).all() or (run >= 0).all()
    assert layout.after == max(r - gone for r, gone in zip(real, lost)) + kinds.shape[1] - max(real)
    assert layout.fillers or bool(layout.mask.all())
    assert torch.equal(layout.dropped(mask), drop)


def test_tokens_that_change_places():
    ids = torch.tensor([[1, 2, 3, 4, 5]])
    places = torch.tensor([[0, 3, 2, 1, 4]])  # 2 and 4 stand in each other's place
    layout = drop_columns(ids, torch.ones_like(ids), ids == 3, places, [1], [5])
    assert layout.gather(ids).tolist() == [[1, 4, 2, 5]]


def test_nothing_dropped_is_the_prompt_itself():
    ids = torch.tensor([[0, 3, 0, 4]])
    layout = drop_columns(
        ids, torch.tensor([[0, 1, 0, 1]]), torch.zeros(1, 4, dtype=torch.bool), columns(ids), [0], [2]
    )
    assert torch.equal(layout.gather(ids), ids)


def test_a_frozen_beginning():
    ids = torch.tensor([[7, 9, 9, 9, 5]])
    first = drop_columns(ids, torch.ones_like(ids), ids == 9, columns(ids), [3], [5])
    longer = torch.tensor([[7, 9, 9, 9, 5, 6, 8]])
    mask = torch.ones_like(longer)
    part = cached_beginning(first, longer, mask, cached=3)  # 7, 5 and the generated 6
    assert (part.before, part.after) == (6, 3)
    total = join_layouts(part, keep_all(longer[:, 6:], mask[:, 6:]), longer)
    assert total.gather(longer).tolist() == [[7, 5, 6, 8]]
    with pytest.raises(ValueError, match="another prompt"):
        cached_beginning(first, longer + 1, mask, cached=3)
    with pytest.raises(ValueError, match="filled by 2 prompts and cannot continue 1"):
        cached_beginning(first.repeated(2), longer, mask, cached=3)


def test_a_frozen_beginning_ends_where_prompts_part():
    ids = torch.tensor([[7, 9, 9, 5, 4]])
    first = drop_columns(ids, torch.ones_like(ids), ids == 9, columns(ids), [2], [5])
    other = torch.tensor([[7, 9, 9, 6, 6, 6]])
    part = cached_beginning(first, other, torch.ones_like(other), cached=1)
    assert (part.before, part.after) == (3, 1)
    with pytest.raises(ValueError, match="another prompt"):
        cached_beginning(first, other, torch.ones_like(other), cached=2)


def test_units():
    ids = torch.tensor([[9, 9, 1, 9, 9, 9, 9], [2, 2, 2, 2, 2, 9, 9]])
    units = locate_images(ids, images(2, 2, 2, 2), {0: 1})
    assert [(unit.row, unit.image, unit.columns.tolist()) for unit in units] == [
        *((0, 1, [0, 1]), (0, 2, [3, 4]), (0, 3, [5, 6]), (1, 0, [5, 6])),
    ]
    with pytest.raises(ValueError, match="8 image placeholders, but the images have 6"):
        locate_images(ids, images(2, 2, 2))
    with pytest.raises(ValueError, match="whole images"):
        locate_images(ids, images(4, 4))

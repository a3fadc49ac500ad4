"""Qwen's towers with tokens that repeat encoded once, against a slow reference."""

import pytest
import torch
from torch.nn.functional import interpolate

from tests.support.families import qwen
from vlprune import Script, attach
from vlprune.vision import CheaperTower

CASES = {case.name: case for case in (qwen.Qwen2VL(), qwen.Qwen25VL(), qwen.Qwen3VL())}
GRIDS = [(1, 8, 12), (3, 4, 6), (1, 4, 4)]  # time, height and width in patches
UNIT = 4
CLOSE = {"rtol": 1e-4, "atol": 1e-5}  # the towers rotate in float32


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture
def model(case):
    return case.model().double().eval()


@pytest.fixture
def tower(model):
    return model.model.visual


def pixels_of(units):
    """(P, c) the pixels of images whose tokens show the given numbers."""
    looks = torch.randn(max(units) + 1, UNIT, qwen.PIXELS, generator=torch.Generator().manual_seed(3)).double()
    return looks[torch.tensor(units)].flatten(0, 1)


def places_of(grids):
    """Of each patch: its image, its frame, its row and column, and its token, by counting."""
    places, frame, token = [], 0, 0
    for image, (time, height, width) in enumerate(grids):
        for _ in range(time):
            for top in range(0, height, 2):
                for left in range(0, width, 2):
                    places += [(image, frame, top + i, left + j, token) for i in range(2) for j in range(2)]
                    token += 1
            frame += 1
    return places


def window_of(tower, place):
    side = tower.window_size // tower.spatial_merge_size // tower.patch_size * 2
    return place[1], place[2] // side, place[3] // side


def rotate(values, cos, sin):
    first, second = values.chunk(2, dim=-1)
    return values * cos + torch.cat([-second, first], dim=-1) * sin


def slow(tower, units, grids):
    """What the tower gives for each token where only the first of equal ones is encoded, and for its layers."""
    places = places_of(grids)
    first = {}
    for token, unit in enumerate(units):
        first.setdefault((places[token * UNIT][0], unit), token)
    stay = [i for i, place in enumerate(places) if place[4] in first.values()]
    seen = [places[i] for i in stay]
    hidden = tower.patch_embed(pixels_of(units)[stay])
    if hasattr(tower, "pos_embed"):
        side = tower.num_grid_per_side
        table = tower.pos_embed.weight.T.view(1, -1, side, side)
        sized = [interpolate(table, size=grid[1:], mode="bilinear", align_corners=True)[0] for grid in grids]
        hidden = hidden + torch.stack([sized[image][:, row, column] for image, _, row, column, _ in seen])
    cos, sin = tower.rotary_pos_emb(hidden, torch.tensor([place[2:4] for place in seen]))
    deep = []
    for number, block in enumerate(tower.blocks):
        attention, heads = block.attn, block.attn.num_heads
        q, k, v = attention.qkv(block.norm1(hidden)).view(len(seen), 3, heads, -1).unbind(1)
        q, k = (rotate(one, cos[:, None], sin[:, None]) for one in (q, k))
        windowed = number not in getattr(tower, "fullatt_block_indexes", range(len(tower.blocks)))
        mixed = torch.empty_like(v)
        for i, place in enumerate(seen):
            group = (lambda one: window_of(tower, one)) if windowed else (lambda one: one[1])
            near = [j for j, other in enumerate(seen) if group(other) == group(place)]
            for head in range(heads):
                weights = (k[near, head] @ q[i, head] / q.shape[-1] ** 0.5).softmax(dim=0)
                mixed[i, head] = weights @ v[near, head]
        hidden = hidden + attention.proj(mixed.flatten(1))
        hidden = hidden + block.mlp(block.norm2(hidden))
        if number in getattr(tower, "deepstack_visual_indexes", ()):
            deep.append(tower.deepstack_merger_list[tower.deepstack_visual_indexes.index(number)](hidden))
    at = [place[4] for place in seen][::UNIT]
    source = [at.index(first[places[token * UNIT][0], unit]) for token, unit in enumerate(units)]
    states = hidden.view(len(at), UNIT, -1)[source].flatten(0, 1)
    return tower.merger(hidden)[source], states, [one[source] for one in deep], len(stay)


UNITS = [0, 1, 1, 2, 0, 0, 3, 3, 3, 4, 4, 0] * 2  # the first image
UNITS += [0, 1, 0, 1, 2, 2, 0, 1, 0, 1, 5, 2, 0, 1, 0, 1, 2, 2]  # a video whose last frame holds nothing new
UNITS += [5, 6, 7, 8]  # an image without repeats


def seen_by(tower):
    """The numbers of patches that the tower is called with, as they come."""
    counts = []
    tower.patch_embed.register_forward_pre_hook(lambda _, args: counts.append(len(args[0])))
    return counts


def test_tokens_that_repeat_are_encoded_once(model, tower):
    counts, grids = seen_by(tower), torch.tensor(GRIDS)
    with CheaperTower(model, repeats=True):
        found = tower(pixels_of(UNITS), grid_thw=grids)
    features, states, deep, count = slow(tower, UNITS, GRIDS)
    assert counts == [count, count]  # the reference's too
    assert count < len(UNITS) * UNIT / 2
    torch.testing.assert_close(found.pooler_output, features, **CLOSE)
    for here, there in zip(getattr(found, "deepstack_features", []), deep, strict=True):
        torch.testing.assert_close(here, there, **CLOSE)
    whole = tower(pixels_of(UNITS), grids)
    assert (whole.pooler_output - features).abs().max() > 100 * CLOSE["atol"]  # so the comparison says something
    assert found.last_hidden_state.shape == whole.last_hidden_state.shape
    order = list(range(len(UNITS)))
    if hasattr(tower, "window_size"):  # whose states lie window by window
        places = places_of(GRIDS)[::UNIT]
        order.sort(key=lambda token: (window_of(tower, places[token]), token))
    in_order = states.view(len(UNITS), UNIT, -1)[order].flatten(0, 1)
    torch.testing.assert_close(found.last_hidden_state, in_order, **CLOSE)


def test_without_repeats_nothing_changes(model, tower):
    pixels, grids = pixels_of(range(24)), torch.tensor(GRIDS[:1])
    plain = tower(pixels, grids).pooler_output
    with CheaperTower(model, repeats=True):
        assert torch.equal(tower(pixels, grids).pooler_output, plain)


def test_with_a_pruner(case):
    """What is pruned is what the cheaper tower made; and the next call without it is as before."""
    model = case.model()
    samples = case.samples("mixed")
    batch = case.batch(samples)
    for name in ("pixel_values", "pixel_values_videos"):
        if name in batch:
            batch[name][UNIT : 3 * UNIT] = batch[name][:UNIT].repeat(2, 1)
    options = {"max_new_tokens": 3, "do_sample": False}
    plain = model.generate(**batch, **options)
    counts = seen_by(model.model.visual)
    with attach(model, Script(keep=4, relevance="none")) as pruner:
        before = model.generate(**batch, **options)
        with CheaperTower(model, repeats=True):
            model.generate(**batch, **options)
        assert torch.equal(model.generate(**batch, **options), before)
        assert pruner.last.after == 4
    assert sum(counts) < sum(counts[: len(counts) // 2]) * 2  # fewer patches the second time, none the third
    assert torch.equal(model.generate(**batch, **options), plain)


def test_what_it_does_not_do_is_said(model, tower):
    name = type(tower).__name__
    with pytest.raises(ValueError, match=f"merge=0.5: a {name} takes repeats=True alone"):
        CheaperTower(model, merge=0.5)
    with pytest.raises(ValueError, match=f"repeats=0.9: a {name} takes repeats=True alone"):
        CheaperTower(model, repeats=0.9)
    with CheaperTower(model, repeats=True), pytest.raises(ValueError, match="output_hidden_states=True"):
        tower(pixels_of([0] * 24), torch.tensor(GRIDS[:1]), output_hidden_states=True)

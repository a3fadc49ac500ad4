"""Repeated images: which they are, and that the tower sees each once."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.vision.conftest import pixels
from vlprune.vision import CheaperTower
from vlprune.vision.repeats import find_repeats


def seen_by(tower):
    """The numbers of images that the tower's embeddings are called with, as they come."""
    counts = []
    tower.embeddings.register_forward_pre_hook(lambda _, args: counts.append(len(args[0])))
    return counts


@settings(max_examples=50, deadline=None)
@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=12),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16, torch.float64]),
)
def test_equal_images_are_found(numbers, dtype):
    images = pixels(5, dtype=dtype)[:, :, :6, :5][numbers]
    assert find_repeats(images).tolist() == [numbers.index(number) for number in numbers]


def test_equal_means_equal_bits():
    images = torch.zeros(4, 3, 2, 2)
    images[1:3] = torch.nan
    images[3] = -0.0
    assert find_repeats(images).tolist() == [0, 1, 1, 3]


def test_equal_sums_are_not_enough():
    images = torch.zeros(3, 3, 1, 1)
    images.view(torch.int32)[0, :2, 0, 0] = torch.tensor([3, 0], dtype=torch.int32)  # weights of 1, 3 and 5
    images.view(torch.int32)[1:, :2, 0, 0] = torch.tensor([0, 1], dtype=torch.int32)
    assert find_repeats(images).tolist() == [0, 1, 2]  # not the least, but right


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(0, 3.1), min_size=1, max_size=12), st.sampled_from([0.9, 0.999, 1.0]))
def test_near_images_follow_the_latest_that_is_encoded(angles, least):
    angles = torch.tensor(angles)
    images = torch.stack([angles.cos(), angles.sin()], dim=1).view(-1, 2, 1, 1)
    wanted, latest = [], 0
    for i, image in enumerate(images):
        equal = next(j for j in range(i + 1) if torch.equal(images[j], image))
        if equal < i:
            wanted.append(wanted[equal])
        elif i and torch.nn.functional.normalize(images[[i, latest]].flatten(1)).prod(dim=0).sum() >= least:
            wanted.append(latest)
        else:
            wanted.append(i)
            latest = i
    assert find_repeats(images, least).tolist() == wanted


def test_the_tower_sees_each_image_once(model, tower, device):
    images = pixels(3).to(device)
    batch, places = images[[0, 0, 1, 2, 1]], [0, 0, 2, 3, 2]
    alone = tower(images, output_hidden_states=True)
    counts = seen_by(tower)
    with CheaperTower(model, repeats=True):
        found = tower(batch, output_hidden_states=True)
        distinct = tower(images, output_hidden_states=True)
        single = tower(images[:1]).last_hidden_state
    assert counts == [3, 3, 1]
    assert torch.equal(single, tower(images[:1]).last_hidden_state)
    numbers = [sorted(set(places)).index(place) for place in places]
    for name in ("last_hidden_state", "pooler_output"):
        assert torch.equal(found[name], alone[name][numbers])
        assert torch.equal(distinct[name], alone[name])
    for states, exact in zip(found.hidden_states, alone.hidden_states):
        assert torch.equal(states, exact[numbers])


def test_near_images_share_features(model, tower, device):
    images = pixels(2).to(device)
    batch = torch.cat([images, images[1:] * 1.001 + 0.001, images[:1]])
    counts = seen_by(tower)
    with CheaperTower(model, repeats=0.999):
        found = tower(batch).last_hidden_state
    assert counts == [2]
    assert torch.equal(found[1], found[2])
    assert torch.equal(found[0], found[3])


def test_attentions_are_repeated_too(model, tower, device):
    tower.set_attn_implementation("eager")
    batch = pixels(2).to(device)[[0, 1, 0]]
    with CheaperTower(model, repeats=True):
        attentions = tower(batch, output_attentions=True).attentions
    assert [len(weights) for weights in attentions] == [3] * 3
    assert torch.equal(attentions[0][0], attentions[0][2])


@pytest.mark.parametrize("merge", [0.0, 0.5])
def test_tuples_are_repeated_too(model, tower, merge, device):
    batch = pixels(2).to(device)[[0, 1, 1]]
    with CheaperTower(model, merge=merge, repeats=True):
        found = tower(batch, return_dict=False)
    assert isinstance(found, tuple)
    assert torch.equal(found[0][1], found[0][2])

"""Token merging inside the tower, against its paper's rule written out in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import tiny_llava as tiny
from tests.support.merging_reference import merged_states
from tests.support.pretended_device import Device, moved
from tests.vision.conftest import TOWERS, pixels
from vlprune import UnsupportedModel
from vlprune.vision import CheaperTower
from vlprune.vision.merging import MergedTokens, merges_by_layer


@pytest.mark.parametrize("merge", [0.1, 0.5, 0.75])
def test_hidden_states_are_those_of_the_rule(model, tower, leading, merge, device):
    model.double()
    images = pixels(2, dtype=torch.float64).to(device)
    embeddings = tower(images, output_hidden_states=True).hidden_states[0]
    with CheaperTower(model, merge=merge):
        found = tower(images, output_hidden_states=True)
    for image in range(2):
        wanted = merged_states(tower, embeddings[image], merge, leading)
        assert len(found.hidden_states) == len(wanted)
        for states, exact in zip(found.hidden_states, wanted):
            torch.testing.assert_close(states[image], exact, rtol=1e-9, atol=1e-9)


def test_as_many_states_as_said_are_different(model, tower, leading, device):
    with CheaperTower(model, merge=0.5):
        found = tower(pixels(1).to(device), output_hidden_states=True)
    counts = [len(states[0].unique(dim=0)) for states in found.hidden_states]
    assert counts == [36 + leading - merged for merged in (0, 6, 12, 18)]
    assert len(found.hidden_states[-1][0, :leading].unique(dim=0)) == leading


def test_no_layer_waits_for_the_device(kind):
    """A number copied to the device in each layer made a tower take a sixth longer."""
    model = moved(tiny.llava(vision=TOWERS[kind][0], strategy="full" if kind == "siglip" else "default"))
    images = moved({"pixel_values": pixels(2)})["pixel_values"]
    with CheaperTower(model, merge=0.5), Device() as device:
        model.model.vision_tower(images)
    assert [line for _, line in device.waits if "match" in line or "merg" in line] == []


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_attention_counts_tokens_by_their_size(model, tower, attention, device):
    """An image of equal patches without positions: merging changes nothing if a token of size s counts s times."""
    model.double()
    tower.set_attn_implementation(attention)
    for name, weight in tower.named_parameters():
        if "position_embed" in name:
            weight.zero_()
    image = torch.full((1, 3, 48, 48), 0.3, dtype=torch.float64, device=device)
    whole = tower(image, output_hidden_states=True)
    with CheaperTower(model, merge=0.75):
        merged = tower(image, output_hidden_states=True)
    for before, after in zip(whole.hidden_states, merged.hidden_states):
        torch.testing.assert_close(before, after, rtol=1e-5, atol=1e-6)  # eager takes its softmax in float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision(model, tower, dtype, device):
    with CheaperTower(model, merge=0.5):
        exact = tower(pixels(1).to(device)).last_hidden_state
        model.to(dtype)
        found = tower(pixels(1, dtype=dtype).to(device)).last_hidden_state
    assert found.dtype == dtype
    assert found.isfinite().all()
    assert torch.cosine_similarity(found.float().flatten(), exact.flatten(), dim=0) > 0.9


def test_autocast(model, tower, device):
    with CheaperTower(model, merge=0.5):
        exact = tower(pixels(1).to(device)).last_hidden_state
        with torch.autocast(device.type, dtype=torch.bfloat16):
            found = tower(pixels(1).to(device)).last_hidden_state
    assert torch.cosine_similarity(found.float().flatten(), exact.flatten(), dim=0) > 0.9


def test_gradients_pass(model, tower, device):
    with torch.enable_grad(), CheaperTower(model, merge=0.5):
        tower(pixels(1).to(device)).last_hidden_state.square().sum().backward()
    missing = [name for name, weight in tower.named_parameters() if weight.grad is None]
    assert not [name for name in missing if "encoder" in name]


def test_layers_that_are_not_known_are_refused(model, tower, monkeypatch):
    monkeypatch.setattr("vlprune.vision.merging.LAYOUTS", ())
    with pytest.raises(UnsupportedModel, match=f"the layers of {type(tower).__name__} are not made as vlprune knows"):
        CheaperTower(model, merge=0.5)
    assert "forward" not in tower.__dict__


@settings(max_examples=60, deadline=None)
@given(st.integers(2, 40), st.integers(0, 3), st.lists(st.floats(0, 1), max_size=4), st.integers(0, 10**6))
def test_every_place_has_one_token(n, leading, shares, seed):
    generator = torch.Generator().manual_seed(seed)
    length = leading + n
    merged = MergedTokens(2, length, leading, torch.device("cpu"))
    first = torch.randn(2, length, 3, generator=generator, dtype=torch.float64)
    states, left = first, n
    for share in shares:
        count = int(share * (left // 2))
        left -= count
        states = merged.merge(states, torch.randn(2, states.shape[1], 4, generator=generator), count)
    assert states.shape[1] == leading + left
    assert (merged.sizes.sum(dim=1) == length).all()
    assert (merged.sizes[:, :leading] == 1).all()
    for image in range(2):
        assert merged.tokens[image, :leading].tolist() == list(range(leading))
        assert torch.equal(merged.tokens[image].bincount(), merged.sizes[image].long())
        assert torch.equal(merged.tokens[image][merged.places[image]], torch.arange(leading + left))
        for token in range(leading + left):  # merging means is merging all at once
            members = first[image][merged.tokens[image] == token]
            torch.testing.assert_close(states[image, token], members.mean(dim=0))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 700), st.integers(1, 30), st.floats(0, 0.99))
def test_merges_add_up(n, layers, merge):
    try:
        counts = merges_by_layer(n, layers, merge)
    except ValueError as error:
        most = float(str(error).split("at most ")[2].split()[0])
        assert most < merge
        assert sum(merges_by_layer(n, layers, most)) == round(most * n)
        return
    assert len(counts) == layers
    assert sum(counts) == round(merge * n)
    assert max(counts) - min(counts) <= 1

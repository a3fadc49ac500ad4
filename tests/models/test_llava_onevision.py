"""The pooling of LLaVA-OneVision's frames: ours against the model's own, bit for bit."""

import math
from types import SimpleNamespace

import pytest
import torch

from tests.support.families.llava import LlavaOnevision
from tests.support.onevision import Onevision
from vlprune import Script, UniformGrid, attach
from vlprune.models import family_of, llava_onevision
from vlprune.models.llava_onevision import pool_frames

GREEDY = {"do_sample": False, "max_new_tokens": 2, "return_dict_in_generate": True, "output_logits": True}


@pytest.fixture
def case():
    return LlavaOnevision()


@pytest.fixture
def dtype(device):
    """One in which frames of three rows are pooled so: on a GPU not float32."""
    return torch.bfloat16 if device.type == "cuda" else torch.float32


@pytest.fixture
def model(case, device, dtype):
    return case.model().to(device, dtype)


@pytest.fixture
def batch(case, device, dtype):
    values = case.batch(case.samples("video"))
    return {name: v.to(device, dtype if v.is_floating_point() else None) for name, v in values.items()}


@pytest.fixture
def pooled(monkeypatch):
    """The shapes of what `pool_frames` was called with."""
    seen = []

    def counting(frames):
        seen.append(tuple(frames.shape))
        return pool_frames(frames)

    monkeypatch.setattr(llava_onevision, "pool_frames", counting)
    return seen


def embeddings(model, batch):
    """Of the prompt, as the decoder gets them."""
    seen = []
    handle = model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(kwargs["inputs_embeds"]), with_kwargs=True
    )
    with torch.no_grad():
        model(**batch)
    handle.remove()
    return seen[-1]


@pytest.mark.parametrize("side", [27, 26, 3, 10])  # LLaVA-OneVision's, LLaVA-Video's, tiny ones
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_same_numbers(side, dtype, device):
    """27 makes weights that are no powers of two; 3,584 are the channels of the 7B models, 1,152 those of SigLIP."""
    case = Onevision()
    case.side = side
    model = case.model()
    random = torch.Generator().manual_seed(side)
    for frames, width in ((2, 3584), (3, 1152), (5, 64), (2, 15), (1, 1)):
        values = (3 * torch.randn(frames, side**2, width, generator=random)).to(device, dtype)
        expected = model.base_model.apply_pooling(values)
        if llava_onevision._pools_exactly(values):
            assert torch.equal(pool_frames(values), expected)
        else:  # the model's own pooling is used
            torch.testing.assert_close(pool_frames(values), expected)
        assert expected.shape == (frames, math.ceil(side / 2) ** 2, width)


def test_more_values_than_can_be_counted(monkeypatch, device):
    values = torch.randn(5, 9, 4, device=device)
    expected = pool_frames(values)
    monkeypatch.setattr(llava_onevision, "MAX_VALUES", 2 * 9 * 4)
    assert torch.equal(pool_frames(values), expected)


def test_nothing_is_copied_before_it(monkeypatch):
    """The picture that is resized is the frames' own memory, with the channels side by side."""
    seen = []

    def resize(picture, size, mode):
        seen.append(picture)
        return picture[..., : size[0], : size[1]]

    monkeypatch.setattr(llava_onevision, "interpolate", resize)
    values = torch.randn(2, 16, 32)
    pool_frames(values)
    assert seen[0].data_ptr() == values.data_ptr()
    assert seen[0].is_contiguous(memory_format=torch.channels_last)


def test_a_pruned_model_pools_so(model, batch, pooled):
    with attach(model, UniformGrid(keep=4), cache_bytes=0):
        model.generate(**batch, **GREEDY)
        first, pooled[:] = list(pooled), []
        model.generate(**batch, **GREEDY)
    videos, frames = batch["pixel_values_videos"].shape[:2]
    model_width, tower_width = model.config.text_config.hidden_size, model.config.vision_config.hidden_size
    own, arranged = (videos * frames, 9, model_width), (videos * frames, 9, tower_width)
    assert first == [(1, 9, model_width), own, arranged]  # one frame to try it
    assert pooled == [own, arranged]
    assert "apply_pooling" not in model.base_model.__dict__


def test_keeping_all_gives_the_same_embeddings(model, batch, pooled):
    plain = embeddings(model, batch)
    assert not pooled
    with attach(model, Script(keep=1.0), cache_bytes=0):
        assert torch.equal(embeddings(model, batch), plain)
    assert pooled


def test_float32_on_a_gpu_is_left_to_the_model():
    """Its kernels round otherwise where weights are no powers of two; no GPU is needed to ask."""
    exactly = llava_onevision._pools_exactly
    assert exactly(torch.empty(1, 729, 4))
    for rows, dtype, expected in ((27, torch.float32, False), (26, torch.float32, True), (27, torch.bfloat16, True)):
        frames = SimpleNamespace(shape=(1, rows**2, 4), dtype=dtype, device=torch.device("cuda"))
        assert exactly(frames) == expected


def test_a_model_that_pools_otherwise_is_left_alone(model, batch, pooled, monkeypatch):
    """As a later transformers might."""
    kind = type(model.base_model)
    own = kind.apply_pooling
    monkeypatch.setattr(kind, "apply_pooling", lambda self, frames: own(self, frames) + 1)
    plain = embeddings(model, batch)
    with attach(model, Script(keep=1.0), cache_bytes=0):
        assert torch.equal(embeddings(model, batch), plain)
    width = model.config.text_config.hidden_size
    assert [shape for shape in pooled if shape[2] == width] == [(1, 9, width)]  # tried, and not used


def test_a_function_that_somebody_gave_the_model_stays(model, batch, pooled):
    own = model.base_model.apply_pooling
    model.base_model.apply_pooling = given = lambda frames: own(frames) + 1
    plain = embeddings(model, batch)
    with attach(model, Script(keep=1.0), cache_bytes=0):
        assert torch.equal(embeddings(model, batch), plain)
    assert model.base_model.apply_pooling is given
    assert [shape[2] for shape in pooled] == [model.config.vision_config.hidden_size]  # the tower's states alone


def test_gradients_are_the_model_s_own(model, pooled, device, dtype):
    apply_pooling = family_of(model).shortcuts(model)["apply_pooling"]
    frames = torch.randn(2, 9, 4, device=device, dtype=dtype)
    assert not apply_pooling(frames).requires_grad
    assert pooled.pop()
    pooled.clear()
    assert apply_pooling(frames.requires_grad_()).requires_grad
    assert not pooled

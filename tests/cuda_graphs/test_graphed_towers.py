"""Towers as graphs while the LLM runs as it does: what `attach` does on a GPU if nothing else is said."""

import copy
import inspect
import math
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounter
from torch.utils._pytree import tree_leaves
from transformers import (
    Dinov2Config,
    Dinov2Model,
    Dinov2WithRegistersConfig,
    Dinov2WithRegistersModel,
    InternVLVisionConfig,
    InternVLVisionModel,
    SiglipVisionConfig,
    SiglipVisionModel,
)

from tests.support import tiny_llava as tiny
from tests.support.families import CASES
from tests.support.families import made as made_model
from tests.support.families.qwen import PIXELS
from tests.support.tape import capture_on_tape
from tests.support.versions import needs_compile
from vlprune import Random, Script, attach
from vlprune.cuda_graphs import GraphedModel, graphed_towers, grouped_attention, use_cuda_graphs, vision_tower
from vlprune.cuda_graphs.capture import Capturing, CudaGraphCapture, no_capture
from vlprune.cuda_graphs.graphed_towers import GraphedTowers, graph_towers
from vlprune.cuda_graphs.grouped_attention import attend_grouped
from vlprune.vision import CheaperTower

GREEDY = {"do_sample": False, "max_new_tokens": 3}


@pytest.fixture
def made():
    """The functions that were captured."""
    return []


@pytest.fixture
def capture(made, device):
    """On a GPU a real one."""
    found = CudaGraphCapture(device) if device.type == "cuda" else capture_on_tape

    def counted(function):
        made.append(function)
        return found(function)

    return counted


@pytest.fixture
def on_any_device(monkeypatch, capture):
    """`attach` takes every device for a GPU, and captures on tape."""
    found = lambda model: graph_towers(model, capture)  # noqa: E731
    monkeypatch.setattr(graphed_towers, "graph_towers", found)


def pixels_of(processor, device, images=1, seed=1):
    return tiny.inputs(processor, ["what ?"] * images, [1] * images, device, seed=seed)["pixel_values"]


@torch.no_grad()
def test_a_shape_is_captured_when_it_comes_again(model, processor, device, capture, made):
    tower = model.model.vision_tower
    one, two, pair = (pixels_of(processor, device, n, seed) for n, seed in ((1, 1), (1, 2), (2, 3)))
    plain = [tower(pixels).last_hidden_state for pixels in (one, two, pair)]
    with graph_towers(model, capture):
        found, counts = [], []
        for pixels in (one, pair, two, pair, one):
            found.append(tower(pixels).last_hidden_state)
            counts.append(len(made))
    assert counts == [0, 0, 1, 2, 2]
    for got, expected in zip(found, [0, 2, 1, 2, 0], strict=True):
        assert torch.equal(got, plain[expected])  # the same kernels
    assert "forward" not in tower.__dict__


SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "image_size": 28, "patch_size": 14}
SQUARES = {"intermediate_size": 32, "image_size": [28, 28], "patch_size": [14, 14]}
KINDS = {
    "dinov2": lambda **own: Dinov2Model(Dinov2Config(**SIZES | own)),
    "registers": lambda **own: Dinov2WithRegistersModel(Dinov2WithRegistersConfig(**SIZES | own)),
    "internvl": lambda **own: InternVLVisionModel(InternVLVisionConfig(**SIZES | SQUARES | own)),
    "siglip": lambda **own: SiglipVisionModel(SiglipVisionConfig(**SIZES | {"intermediate_size": 32} | own)),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_towers_of_other_kinds(kind, device, capture, made):
    torch.manual_seed(0)
    tower = KINDS[kind]().to(device).eval()
    base = torch.nn.Module()
    base.vision_tower = tower
    pixels = [torch.randn(2, 3, 28, 28, device=device) for _ in range(3)]
    plain = [tower(pixel_values=one, output_hidden_states=True).hidden_states for one in pixels]
    with graph_towers(SimpleNamespace(base_model=base, device=device), capture):
        found = [tower(pixel_values=one, output_hidden_states=True).hidden_states for one in pixels]
    assert len(made) == 1
    for got, expected in zip(found, plain, strict=True):
        assert torch.equal(torch.stack(got), torch.stack(expected))


QWENS = [case for case in CASES if case.name.startswith("qwen")]


@pytest.fixture(params=QWENS, ids=[case.name for case in QWENS])
def qwen(request, device):
    return copy.deepcopy(made_model(request.param)).to(device)


def patches_of(*sizes, device, seed=0):
    """The patches of images (time, height, width), and their sizes."""
    count = sum(math.prod(size) for size in sizes)
    pixels = torch.randn(count, PIXELS, generator=torch.Generator().manual_seed(seed))
    return pixels.to(device), torch.tensor(sizes, device=device)


@torch.no_grad()
def test_towers_of_patches(qwen, device, capture, made):
    """Each list of image sizes has a graph of its own, also where there are as many patches in all."""
    lists = {"one": [(1, 6, 4)], "turned": [(1, 4, 6)], "two": [(1, 2, 6), (1, 6, 2)], "a video": [(3, 2, 4)]}
    calls = [patches_of(*lists[name], device=device, seed=i) for i in range(3) for name in lists]
    tower = qwen.model.visual
    plain = [tower(pixels, grid_thw=sizes, return_dict=True) for pixels, sizes in calls]
    with graph_towers(qwen, capture):
        found = [tower(pixels, grid_thw=sizes, return_dict=True) for pixels, sizes in calls]
    assert len(made) == len(lists)
    for got, expected in zip(found, plain, strict=True):
        assert list(got) == list(expected)
        for one, other in zip(tree_leaves(dict(got)), tree_leaves(dict(expected)), strict=True):
            assert torch.equal(one, other)
    assert "forward" not in tower.__dict__


@pytest.mark.parametrize("case", QWENS, ids=[case.name for case in QWENS])
def test_attach_does_so_for_patches(case, device, on_any_device, made):
    model = copy.deepcopy(made_model(case)).to(device)
    batch = {name: value.to(device) for name, value in case.batch(case.samples("mixed")).items()}
    seen = {}
    for graphs in ("towers", False):
        with attach(model, Random(keep=3), cache_bytes=0, cuda_graphs=graphs) as pruner:
            out = [model.generate(**batch, **GREEDY).tolist() for _ in range(3)]
            seen[graphs] = out, [record.kept.tolist() for record in pruner.records]
    assert seen["towers"] == seen[False]
    assert len(made) == 2, "the images and the videos of the second call"


@pytest.fixture
def grouped_calls(monkeypatch):
    """An entry for each call that attends to all sequences of a length at once."""
    calls = []

    def attend(*args, **kwargs):
        calls.append(1)
        return attend_grouped(*args, **kwargs)

    monkeypatch.setattr(grouped_attention, "attend_grouped", attend)
    return calls


@torch.no_grad()
def test_more_patches_than_a_graph_holds(qwen, device, capture, made, monkeypatch, grouped_calls):
    """All sequences of a length are attended to in one call then, too, as they are before there is a graph."""
    tower, (pixels, sizes) = qwen.model.visual, patches_of((1, 4, 4), (1, 4, 4), device=device)
    plain = tower(pixels, grid_thw=sizes, return_dict=True)
    monkeypatch.setattr(vision_tower, "MAX_PATCHES", 31)
    with graph_towers(qwen, capture):
        found = [tower(pixels, grid_thw=sizes, return_dict=True) for _ in range(3)]
    assert not made
    assert len(grouped_calls) == 3 * len(tower.blocks)
    assert all(torch.equal(one.pooler_output, plain.pooler_output) for one in found)
    assert tower.config._attn_implementation == "sdpa"


@torch.no_grad()
@pytest.mark.parametrize("cheaper", [False, True])
def test_without_graphs_patches_are_attended_to_in_groups(qwen, device, grouped_calls, cheaper):
    """While a pruner is attached, with the same bits; not where a CheaperTower is at work."""
    tower, (pixels, sizes) = qwen.model.visual, patches_of((1, 4, 4), (1, 4, 4), device=device)
    plain = tower(pixels, grid_thw=sizes, return_dict=True)
    at_work = CheaperTower(qwen, repeats=True) if cheaper else nullcontext()
    with at_work, attach(qwen, Random(keep=3), cuda_graphs=False):
        found = tower(pixels, grid_thw=sizes, return_dict=True)
    assert len(grouped_calls) == (0 if cheaper else len(tower.blocks))
    assert torch.equal(found.pooler_output, plain.pooler_output)
    assert "forward" not in tower.__dict__


@torch.no_grad()
@pytest.mark.parametrize("why", ["attention of another kind", "no sizes"])
def test_patches_that_are_not_covered(qwen, device, capture, made, why):
    tower, (pixels, sizes) = qwen.model.visual, patches_of((1, 4, 4), device=device)
    if why == "attention of another kind":
        qwen.set_attn_implementation("eager")
    with graph_towers(qwen, capture):
        for _ in range(3):
            if why == "no sizes":
                with pytest.raises(TypeError, match="grid_thw"):
                    tower(pixels)
            else:
                tower(pixels, grid_thw=sizes)
    assert not made


@needs_compile
@torch.no_grad()
@pytest.mark.parametrize("kind", KINDS)
def test_layers_are_compiled_once_for_all(kind, device):
    """And run so for more images than graphs hold, too."""
    torch.manual_seed(0)
    counts = []
    for layers in (2, 4):
        tower = KINDS[kind](num_hidden_layers=layers).to(device).eval()
        base = torch.nn.Module()
        base.vision_tower = tower
        pixels = [torch.randn(images, 3, 28, 28, device=device) for images in (2, 9)]
        plain = [tower(pixel_values=one).last_hidden_state for one in pixels]
        torch._dynamo.reset()
        counter, model = CompileCounter(), SimpleNamespace(base_model=base, device=device)
        with GraphedTowers(model, Capturing(model, no_capture, pytest.fail), compiler=counter):
            found = [tower(pixel_values=one).last_hidden_state for one in pixels]
        for got, expected in zip(found, plain, strict=True):
            assert torch.allclose(got, expected, atol=1e-5)
        assert not any("forward" in module.__dict__ for module in tower.modules())
        counts.append(counter.frame_count)
    assert counts[0] == counts[1] > 0
    torch._dynamo.reset()


@torch.no_grad()
def test_shapes_are_forgotten(model, processor, device, capture, made, monkeypatch):
    from vlprune.cuda_graphs import vision_tower

    monkeypatch.setattr(vision_tower, "MAX_COUNTED", 1)
    tower = model.model.vision_tower
    one, pair = pixels_of(processor, device), pixels_of(processor, device, 2)
    with graph_towers(model, capture):
        for pixels in (one, pair, one, pair):
            tower(pixels)
    assert not made


def test_attach_does_so_by_default(model, processor, single, on_any_device, made):
    """The answers are the same, the LLM is left alone, and all is given back."""
    assert inspect.signature(attach).parameters["cuda_graphs"].default == "towers"
    clip, tower = tiny.clip().to(model.device), model.model.vision_tower
    seen = {}
    for graphs in ("towers", False):
        options = {"processor": processor, "dual_encoder": clip, "cache_bytes": 0, "cuda_graphs": graphs}
        with attach(model, Script(keep=5), **options) as pruner:
            out = [model.generate(**single, **GREEDY) for _ in range(3)]
            seen[graphs] = [ids.tolist() for ids in out], pruner.last.kept.tolist()
            assert isinstance(pruner.cuda_graphs, GraphedTowers) == (graphs == "towers")
            assert "forward" not in model.get_decoder().__dict__
        assert "forward" not in tower.__dict__
    assert seen["towers"] == seen[False]
    assert len(made) == 1, "the second call's pixels"


def test_keeping_all_is_the_plain_model(model, processor, single, on_any_device, made):
    options = {**GREEDY, "return_dict_in_generate": True, "output_logits": True}
    plain = model.generate(**single, **options)
    with attach(model, Script(keep=1.0, relevance="none"), processor=processor, cache_bytes=0):
        outputs = [model.generate(**single, **options) for _ in range(3)]
    assert len(made) == 1
    for output in outputs:
        assert torch.equal(torch.stack(output.logits), torch.stack(plain.logits))


def test_nothing_on_a_cpu(model, device):
    if device.type == "cuda":
        pytest.skip("needs a model that is not on a GPU")
    assert use_cuda_graphs(model, "towers") is None
    assert use_cuda_graphs(model, False) is None


def test_a_cheaper_tower_stays(model, single, processor, on_any_device, made):
    with CheaperTower(model, merge=0.5), attach(model, Script(keep=5, relevance="none"), cache_bytes=0) as pruner:
        for _ in range(2):
            model.generate(**single, **GREEDY)
        assert pruner.cuda_graphs is None
    assert not made
    with CheaperTower(model, merge=0.5), pytest.raises(RuntimeError, match="CheaperTower"):
        GraphedModel(model)


@torch.no_grad()
@pytest.mark.parametrize("ends_first", ["the cheaper tower", "the graphs"])
def test_graphs_make_room_for_a_cheaper_tower(model, processor, device, capture, made, ends_first):
    """It changes what is inside the tower, which a graph would not see."""
    tower, pixels = model.model.vision_tower, pixels_of(processor, device, 2)
    plain = tower(pixels).last_hidden_state
    with CheaperTower(model, merge=0.5):
        merged = tower(pixels).last_hidden_state
    graphs = graph_towers(model, capture)
    for _ in range(2):
        assert torch.equal(tower(pixels).last_hidden_state, plain)
    cheaper = CheaperTower(model, merge=0.5)
    for _ in range(3):
        assert torch.equal(tower(pixels).last_hidden_state, merged)
    for one in (cheaper, graphs) if ends_first == "the cheaper tower" else (graphs, cheaper):
        one.close()
    assert len(made) == 1
    assert torch.equal(tower(pixels).last_hidden_state, plain)
    assert not any("forward" in module.__dict__ for module in tower.modules())


def test_graphs_that_are_there_already_stay(model, processor, single, on_any_device, made):
    """A graph cannot be captured inside another."""
    with GraphedModel(model, capture=None if model.device.type == "cuda" else capture_on_tape):
        with attach(model, Script(keep=5, relevance="none"), cache_bytes=0) as pruner:
            for _ in range(3):
                model.generate(**single, **GREEDY)
            assert pruner.cuda_graphs is None
        assert hasattr(model.model.vision_tower.__dict__["forward"], "graphed")
    assert not made


@torch.no_grad()
@pytest.mark.parametrize("why", ["gradients", "training", "a hook", "accelerate", "autocast", "too many"])
def test_what_is_not_covered(model, processor, device, capture, made, why):
    tower, pixels = model.model.vision_tower, pixels_of(processor, device)
    if why == "training":
        tower.train()
    elif why == "a hook":
        tower.encoder.layers[0].register_forward_hook(lambda *_: None)
    elif why == "accelerate":
        tower.encoder.layers[0]._hf_hook = object()
    elif why == "too many":
        pixels = pixels.repeat(9, 1, 1, 1)
    with graph_towers(model, capture):
        for _ in range(3):
            with torch.set_grad_enabled(why == "gradients"), torch.autocast(device.type, enabled=why == "autocast"):
                tower(pixels)
    assert not made


@needs_compile
@torch.no_grad()
def test_a_compiled_tower_is_left_to_the_compiler(model, processor, device, capture, made):
    tower, pixels = model.model.vision_tower, pixels_of(processor, device)
    plain = tower(pixels).last_hidden_state
    with graph_towers(model, capture):
        compiled = torch.compile(tower, backend="eager")
        for _ in range(3):
            assert torch.equal(compiled(pixels).last_hidden_state, plain)
    assert not made


@torch.no_grad()
def test_a_capture_that_fails_is_told_once(model, processor, device):
    def broken(function):
        raise RuntimeError("no memory")

    tower, pixels = model.model.vision_tower, pixels_of(processor, device)
    plain = tower(pixels).last_hidden_state
    with graph_towers(model, broken):
        tower(pixels)
        with pytest.warns(UserWarning, match=r"tower runs without CUDA graphs: .* \(no memory\)\.$"):
            assert torch.equal(tower(pixels).last_hidden_state, plain)
        assert torch.equal(tower(pixels).last_hidden_state, plain)  # a second warning would be an error


def test_choices():
    with pytest.raises(ValueError, match="cuda_graphs='llm': choose from False, 'towers', True and 'compile'"):
        use_cuda_graphs(None, "llm")


def test_capturing_on_a_cpu(model, device):
    if device.type != "cuda":
        assert Capturing(model, None, print).capture() is None

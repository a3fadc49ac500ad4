"""A question embedded by graphs is what its text tower says."""

import pytest
import torch

from tests.support import tiny_llava as tiny
from tests.support.tape import capture_on_tape
from vlprune import Script, attach
from vlprune.cuda_graphs.capture import Capturing, CudaGraphCapture
from vlprune.cuda_graphs.text_tower import STEP, TextTowerGraphs
from vlprune.pruning.dual_encoder import DualEncoder, clip_text

QUESTIONS = ["cat", "what color is the cat ?", "is the big red cat like the other one in the image ?"]
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


@pytest.fixture
def clip(device):
    return tiny.clip().to(device)


@pytest.fixture
def captures(device):
    """How to capture, and a list that grows by each capture."""
    made, capture = [], CudaGraphCapture(device) if device.type == "cuda" else capture_on_tape

    def counted(function):
        made.append(function)
        return capture(function)

    return counted, made


@torch.no_grad()
def test_same_embeddings(model, processor, clip, captures):
    capture, made = captures
    graphs, dual = TextTowerGraphs(model, capture), DualEncoder(clip, processor.tokenizer, model)
    lengths = set()
    for _ in range(2):
        for text in QUESTIONS:
            (ids,) = dual.chunks(text)
            lengths.add(-(-len(ids) // STEP))
            found = graphs(clip, ids)
            torch.testing.assert_close(found, clip_text(clip, ids), **CLOSE)
            assert not found.requires_grad
            more = [*ids, *ids[1:]]  # a second text after the end
            torch.testing.assert_close(graphs(clip, more), clip_text(clip, ids), **CLOSE)
    assert len(made) == len(lengths)
    assert graphs(clip, [1, 5]) is None


@torch.no_grad()
def test_a_result_is_not_overwritten(model, processor, clip, captures):
    graphs, dual = TextTowerGraphs(model, captures[0]), DualEncoder(clip, processor.tokenizer, model)
    first = graphs(clip, dual.chunks("cat")[0])
    before = first.clone()
    graphs(clip, dual.chunks("dog")[0])
    assert torch.equal(first, before)


@torch.no_grad()
def test_weights_that_move_are_captured_anew(model, processor, clip, captures):
    capture, made = captures
    graphs, dual = TextTowerGraphs(model, capture), DualEncoder(clip, processor.tokenizer, model)
    (ids,) = dual.chunks("cat")
    graphs(clip, ids)
    for number, layer in enumerate([clip.text_model.encoder.layers[0].mlp.fc1, clip.text_projection]):
        layer.weight = torch.nn.Parameter(layer.weight * 1.5)
        torch.testing.assert_close(graphs(clip, ids), clip_text(clip, ids), **CLOSE)
        assert len(made) == 2 + number


def test_under_inference_mode(model, processor, clip, captures):
    """Captured there, it serves outside as well."""
    capture, made = captures
    graphs, dual = TextTowerGraphs(model, capture), DualEncoder(clip, processor.tokenizer, model)
    (ids,) = dual.chunks("cat")
    with torch.inference_mode():
        found = graphs(clip, ids).clone()
    with torch.no_grad():
        torch.testing.assert_close(graphs(clip, ids), clip_text(clip, ids), **CLOSE)
    torch.testing.assert_close(found.clone(), clip_text(clip, ids), **CLOSE)
    assert len(made) == 1


@torch.no_grad()
def test_a_capture_that_fails_is_told(model, processor, clip):
    def broken(function):
        raise RuntimeError("no memory")

    graphs, (ids,) = TextTowerGraphs(model, broken), DualEncoder(clip, processor.tokenizer, model).chunks("cat")
    with pytest.warns(UserWarning, match=r"without CUDA graphs: they could not be captured \(no memory\)"):
        assert torch.equal(graphs(clip, ids), clip_text(clip, ids))
    assert torch.equal(graphs(clip, ids), clip_text(clip, ids))  # not tried again, nor told


def test_attach_embeds_by_graphs(model, processor, clip, single, device, monkeypatch):
    """Whatever of the model runs as graphs: tokens and answers are those of the text tower as it is."""
    if device.type != "cuda":
        monkeypatch.setattr(Capturing, "capture", lambda self: capture_on_tape)
    seen, call = [], TextTowerGraphs.__call__
    for graphs, by_graphs in ((False, False), (False, True), (True, True)):
        options = {"processor": processor, "dual_encoder": clip, "cuda_graphs": graphs}
        with attach(model, Script(keep=5), **options) as pruner:
            if not by_graphs:
                monkeypatch.setattr(TextTowerGraphs, "__call__", lambda self, *given: clip_text(*given))
            out = [model.generate(**single, max_new_tokens=4, do_sample=False) for _ in range(2)]
            seen.append((out[-1].tolist(), pruner.last.kept.tolist()))
            assert bool(pruner._text_tower._graphs) == by_graphs
            monkeypatch.setattr(TextTowerGraphs, "__call__", call)
        assert not pruner._text_tower._graphs
    assert seen[0] == seen[1] == seen[2]

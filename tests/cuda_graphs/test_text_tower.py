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


def text_graphs(model, capture):
    """Graphs whose capture must not fail."""

    def failed(reason):
        raise AssertionError(reason)

    return TextTowerGraphs(model, Capturing(model, capture, failed))


@torch.no_grad()
def test_same_embeddings(model, processor, clip, captures):
    capture, made = captures
    graphs, dual = text_graphs(model, capture), DualEncoder(clip, processor.tokenizer, model)
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
    graphs, dual = text_graphs(model, captures[0]), DualEncoder(clip, processor.tokenizer, model)
    first = graphs(clip, dual.chunks("cat")[0])
    before = first.clone()
    graphs(clip, dual.chunks("dog")[0])
    assert torch.equal(first, before)


@torch.no_grad()
def test_weights_that_move_are_captured_anew(model, processor, clip, captures):
    capture, made = captures
    graphs, dual = text_graphs(model, capture), DualEncoder(clip, processor.tokenizer, model)
    (ids,) = dual.chunks("cat")
    graphs(clip, ids)
    for number, layer in enumerate([clip.text_model.encoder.layers[0].mlp.fc1, clip.text_projection]):
        layer.weight = torch.nn.Parameter(layer.weight * 1.5)
        torch.testing.assert_close(graphs(clip, ids), clip_text(clip, ids), **CLOSE)
        assert len(made) == 2 + number


def test_under_inference_mode(model, processor, clip, captures):
    """Captured there, it serves outside as well."""
    capture, made = captures
    graphs, dual = text_graphs(model, capture), DualEncoder(clip, processor.tokenizer, model)
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

    told = []
    capturing, dual = Capturing(model, broken, told.append), DualEncoder(clip, processor.tokenizer, model)
    graphs = TextTowerGraphs(model, capturing)
    (ids,) = dual.chunks("cat")
    assert torch.equal(graphs(clip, ids), clip_text(clip, ids))
    assert told == ["they could not be captured (no memory)"]
    assert capturing.capture() is None


def test_attach_embeds_by_graphs(model, processor, clip, single, device, monkeypatch):
    """Graphs are asked once for a question; tokens and answers are those without."""
    if device.type != "cuda":
        monkeypatch.setattr(Capturing, "capture", lambda self: capture_on_tape)
    calls = []
    original = TextTowerGraphs.__call__
    monkeypatch.setattr(TextTowerGraphs, "__call__", lambda self, *given: calls.append(given) or original(self, *given))
    seen = {}
    for graphs in (False, True):
        options = {"processor": processor, "dual_encoder": clip, "cuda_graphs": graphs}
        with attach(model, Script(keep=5), **options) as pruner:
            out = [model.generate(**single, max_new_tokens=4, do_sample=False) for _ in range(2)]
            seen[graphs] = (out[-1].tolist(), pruner.last.kept.tolist())
            assert not graphs or pruner.cuda_graphs.text_tower._graphs
        assert len(calls) == 2 * graphs
    assert seen[False] == seen[True]

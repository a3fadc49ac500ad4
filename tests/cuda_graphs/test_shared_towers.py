"""Two models that share a vision tower, whose graphs hold the pixels of one call at a time."""

import copy
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from tests.support import tiny_llava as tiny
from tests.support.families import CASES
from tests.support.families import made as made_model
from tests.support.families.qwen import PIXELS
from tests.support.tape import capture_on_tape
from vlprune import Random, attach
from vlprune.cuda_graphs import GraphedModel, grouped_attention
from vlprune.cuda_graphs.capture import CudaGraphCapture
from vlprune.cuda_graphs.graphed_towers import graph_towers
from vlprune.cuda_graphs.grouped_attention import attend_grouped

GREEDY = {"do_sample": False, "max_new_tokens": 3}
TIMEOUT = 30


@pytest.fixture
def capture(device):
    """On a GPU a real one."""
    return CudaGraphCapture(device) if device.type == "cuda" else capture_on_tape


@pytest.fixture
def pictures(processor, device):
    """Pixels of three different images."""
    return [tiny.inputs(processor, ["what ?"], [1], device, seed=seed)["pixel_values"] for seed in range(3)]


def in_threads(function, jobs):
    with ThreadPoolExecutor(3) as pool:
        return [future.result(TIMEOUT) for future in [pool.submit(function, job) for job in jobs]]


@torch.no_grad()
def test_threads_take_turns(model, pictures, capture):
    """A second thread's pixels do not take the place of the first's before these are read."""
    tower = model.model.vision_tower
    plain = [tower(pixels).last_hidden_state for pixels in pictures]

    def slow(function):
        replay = capture(function)

        def replay_later():
            time.sleep(0.01)  # the pixels are there, and another thread may come
            return replay()

        return replay_later

    def encode(number):
        with torch.no_grad():  # each thread has its own mode
            return tower(pictures[number]).last_hidden_state

    jobs = [0, 1, 2] * 4
    with graph_towers(model, slow):
        found = in_threads(encode, jobs)
    assert all(torch.equal(one, plain[number]) for one, number in zip(found, jobs))


@torch.no_grad()
def test_streams_take_turns(model, pictures, device):
    """On the device, too, where a second stream does not wait for the first."""
    if device.type != "cuda":
        pytest.skip("needs a GPU")
    tower, (first, second, _) = model.model.vision_tower, pictures
    plain = [tower(pixels).last_hidden_state for pixels in (first, second)]

    def slow(function):
        return CudaGraphCapture(device)(lambda: (torch.cuda._sleep(100_000_000), function())[1])

    streams = [torch.cuda.Stream(device) for _ in range(2)]
    with graph_towers(model, slow):
        for _ in range(2):
            tower(first)
        torch.cuda.synchronize()
        found = []
        for stream, pixels in zip(streams, (first, second)):
            with torch.cuda.stream(stream):
                found.append(tower(pixels).last_hidden_state)
        torch.cuda.synchronize()
    assert all(map(torch.equal, found, plain))


@torch.no_grad()
def test_threads_that_attend_in_groups(device, monkeypatch):
    """How a tower of patches attends is a setting of its config: one call at a time changes it."""
    qwen = copy.deepcopy(made_model(next(case for case in CASES if case.name == "qwen2_5_vl"))).to(device)
    tower, sizes = qwen.model.visual, torch.tensor([[1, 4, 4]], device=device)
    pictures = list(torch.rand(2, 16, PIXELS, generator=torch.Generator().manual_seed(0)).to(device))
    plain = [tower(pixels, grid_thw=sizes, return_dict=True).pooler_output for pixels in pictures]
    inside, most = set(), []

    def attend(*args, **kwargs):
        inside.add(threading.get_ident())
        most.append(len(inside))
        time.sleep(0.01)
        try:
            return attend_grouped(*args, **kwargs)
        finally:
            inside.discard(threading.get_ident())

    def encode(number):
        with torch.no_grad():
            return tower(pictures[number], grid_thw=sizes, return_dict=True).pooler_output

    monkeypatch.setattr(grouped_attention, "attend_grouped", attend)
    jobs = [0, 1] * 4
    with attach(qwen, Random(keep=3), cuda_graphs=False):
        found = in_threads(encode, jobs)
    assert max(most) == 1
    assert len(most) == len(jobs) * len(tower.blocks)
    assert all(torch.equal(one, plain[number]) for one, number in zip(found, jobs))
    assert tower.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("ends_first", [0, 1])
def test_either_model_may_end_first(model, single, device, capture, ends_first):
    """The one that is left answers as before, and at the end the tower is as it was."""
    other = tiny.llava(seed=1).to(device)
    other.model.vision_tower = tower = model.model.vision_tower
    models = (model, other)
    plain = [one.generate(**single, **GREEDY) for one in models]
    graphs = [GraphedModel(one, capture=capture) for one in models]
    for _ in range(2):
        assert all(torch.equal(one.generate(**single, **GREEDY), ids) for one, ids in zip(models, plain))
    graphs[ends_first].close()
    for _ in range(2):
        assert all(torch.equal(one.generate(**single, **GREEDY), ids) for one, ids in zip(models, plain))
    graphs[1 - ends_first].close()
    assert not any("forward" in module.__dict__ for module in tower.modules())

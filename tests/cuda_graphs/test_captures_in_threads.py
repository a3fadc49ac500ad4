"""Models of their own in threads of their own: torch allows one capture at a time."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from types import SimpleNamespace

import pytest
import torch

from tests.support import tiny_llava as tiny
from vlprune import Script, attach
from vlprune.cuda_graphs.capture import CudaGraphCapture
from vlprune.devices import capture_lock
from vlprune.selection import select_script
from vlprune.selection.fused import replay

GREEDY = {"do_sample": False, "max_new_tokens": 3}
TIMEOUT = 120


def test_each_model_answers_as_if_alone(processor, device):
    """On a GPU towers, questions and selections are captured again each time a pruner is attached, here all at once."""
    models = [tiny.llava(seed=seed).to(device) for seed in range(4)]
    texts = ["what color is the cat ?", "how many dogs ?", "where is the big red dog ?"]
    prompts = [tiny.inputs(processor, texts[: rows + 1], [1] * (rows + 1), device, seed=rows) for rows in range(3)]

    def answers(model):
        found = []
        for _ in range(4):
            clip = tiny.clip().to(device)
            with attach(model, Script(keep=9), processor=processor, dual_encoder=clip, cache_bytes=0):
                found += [model.generate(**prompt, **GREEDY).tolist() for _ in range(3) for prompt in prompts]
        return found

    alone = [answers(model) for model in models]
    with ThreadPoolExecutor(len(models)) as pool:
        together = [future.result(TIMEOUT) for future in [pool.submit(answers, model) for model in models]]
    assert together == alone


def test_a_capture_beside_another_ones(device):
    """That of somebody who knows nothing of ours: it fails, and its thread stays on the stream where it was."""
    if device.type != "cuda":
        pytest.skip("needs a GPU")
    begun, ended = threading.Event(), threading.Event()

    def other():
        with suppress(RuntimeError), torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
            begun.set()
            ended.wait(TIMEOUT)

    thread, numbers = threading.Thread(target=other), torch.ones(4, device=device)
    thread.start()
    try:
        assert begun.wait(TIMEOUT)
        with pytest.raises(RuntimeError):
            CudaGraphCapture(device)(lambda: numbers + 1)
        assert torch.cuda.current_stream(device) == torch.cuda.default_stream(device)
        assert (numbers + 1).tolist() == [2.0] * 4
    finally:
        ended.set()
        thread.join(TIMEOUT)


def test_one_capture_at_a_time(monkeypatch):
    """Whoever comes while another captures waits until it is done."""
    inside, most = [], []

    @contextmanager
    def graph(*args, **kwargs):
        inside.append(threading.get_ident())
        most.append(len(inside))
        time.sleep(0.01)
        try:
            yield
        finally:
            inside.remove(threading.get_ident())

    stream = SimpleNamespace(wait_stream=lambda other: None)
    fakes = {"device": lambda device: nullcontext(), "stream": lambda stream: nullcontext(), "graph": graph}
    fakes |= {"Stream": lambda: stream, "current_stream": lambda: stream, "CUDAGraph": lambda: None}
    for name, fake in {**fakes, "graph_pool_handle": lambda: None}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    captures = [CudaGraphCapture(torch.device("cuda")) for _ in range(4)]
    with ThreadPoolExecutor(len(captures)) as pool:
        list(pool.map(lambda capture: [capture(lambda: 1) for _ in range(3)], captures))
    assert most == [1] * 12


@contextmanager
def another_captures():
    """Inside, another thread has the captures' lock."""
    taken, done = threading.Event(), threading.Event()

    def hold():
        with capture_lock:
            taken.set()
            done.wait(TIMEOUT)

    thread = threading.Thread(target=hold)
    thread.start()
    try:
        assert taken.wait(TIMEOUT)
        yield
    finally:
        done.set()
        thread.join(TIMEOUT)


@pytest.mark.parametrize("in_place", [False, True])
def test_no_selection_is_recorded_while_another_captures(in_place, monkeypatch):
    """Nor does it wait: the other may need a selection, which has a lock of its own. Afterwards it is recorded."""
    x, recording = torch.zeros(1, 4, 3), replay.Recording(None, [], None)
    kind = replay.Kind(0, addresses=(x.data_ptr(),), steady=replay.STEADY if in_place else 0)
    monkeypatch.setattr(replay, "_capture", lambda *given: recording)
    call = (kind, lambda features: features, [x], {"features": x}, {})
    with another_captures():
        assert replay._recording(*call) is None
    assert replay._recording(*call) is recording
    assert (kind.in_place, kind.copying) == ((recording, None) if in_place else (None, recording))


def test_a_selection_while_another_captures(device):
    """It is as ever: the kernels run one by one."""
    if device.type != "cuda":
        pytest.skip("needs a GPU")
    x, relevance = torch.randn(2, 50, 16, device=device), torch.rand(2, 50, device=device)
    replay._kinds.clear()
    expected = select_script(x, None, 9, relevance=relevance).kept.tolist()
    with another_captures():
        assert [select_script(x, None, 9, relevance=relevance).kept.tolist() for _ in range(3)] == [expected] * 3
        assert [kind.copying for kind in replay._kinds.values()] == [None]
    assert [select_script(x, None, 9, relevance=relevance).kept.tolist() for _ in range(3)] == [expected] * 3
    assert all(kind.copying for kind in replay._kinds.values())

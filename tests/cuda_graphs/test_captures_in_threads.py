"""Several threads and streams: one capture and one replay at a time, and nobody else is disturbed."""

import copy
import itertools
import threading
import time
import weakref
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import pytest
import torch

from tests.support import tiny_llava as tiny
from vlprune import Script, attach, captured_graph
from vlprune.captured_graph import CapturedGraph, StreamOrder, capture_lock
from vlprune.cuda_graphs.capture import CudaGraphCapture
from vlprune.selection import select_script
from vlprune.selection.fused import device_errors, replay

GREEDY = {"do_sample": False, "max_new_tokens": 3}
TIMEOUT = 120


@pytest.fixture
def gpu(device):
    if device.type != "cuda":
        pytest.skip("needs a GPU")
    return device


@contextmanager
def in_another_thread(work):
    """Inside, `work(begun, ended)` runs in a thread, has begun, and may go on to its end when this ends."""
    begun, ended = threading.Event(), threading.Event()
    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work, begun.set, lambda: ended.wait(TIMEOUT))
        try:
            assert begun.wait(TIMEOUT)
            yield
        finally:
            ended.set()
        future.result(TIMEOUT)


def test_each_model_answers_as_if_alone(processor, device):
    """On a GPU towers, questions and selections are captured again each time a pruner is attached, here all at once."""
    models = [tiny.llava(seed=seed).to(device) for seed in range(4)]
    texts = ["what color is the cat ?", "how many dogs ?", "where is the big red dog ?"]
    prompts = [tiny.inputs(processor, texts[: rows + 1], [1] * (rows + 1), device, seed=rows) for rows in range(3)]

    def answers(model):
        found = []
        for _ in range(4 if device.type == "cuda" else 2):
            clip = tiny.clip().to(device)
            with attach(model, Script(keep=9), processor=processor, dual_encoder=clip, cache_bytes=0):
                found += [model.generate(**prompt, **GREEDY).tolist() for _ in range(3) for prompt in prompts]
        return found

    alone = [answers(model) for model in models]
    with ThreadPoolExecutor(len(models)) as pool:
        together = [future.result(TIMEOUT) for future in [pool.submit(answers, model) for model in models]]
    assert together == alone


# --- what CUDA is told, on any machine ---


class Stream(nullcontext):
    """A stream that notes for which others it has waited."""

    device = torch.device("cuda", 0)

    def __init__(self, *_, **__):
        super().__init__()
        self.waited = []

    def wait_stream(self, other):
        self.waited.append(other)

    def synchronize(self):
        pass


@pytest.fixture
def cuda(monkeypatch):
    """Functions of `torch.cuda` that note what is asked of them: a machine with one GPU, as far as captures go."""
    noted = SimpleNamespace(inside=[], most=[], stream=Stream(), states=[], generator=SimpleNamespace(state="own"))
    noted.pools, handles = Counter(), itertools.count()

    class Graph:
        def capture_begin(self, pool, capture_error_mode):
            if pool is not None and pool in noted.pools and noted.pools[pool] == 0:
                raise RuntimeError("use_count > 0 INTERNAL ASSERT FAILED")  # torch's words
            noted.pools[pool] += 1
            weakref.finalize(self, noted.pools.subtract, [pool])
            noted.inside.append(self)
            noted.most.append(len(noted.inside))
            noted.states.append(noted.generator.state)
            time.sleep(0.01)

        def capture_end(self):
            noted.inside.remove(self)

        def replay(self):
            pass

    generator = noted.generator
    generator.graphsafe_get_state = lambda: generator.state
    generator.graphsafe_set_state = lambda state: setattr(generator, "state", state)
    generator.clone_state = lambda: "spare"
    fakes = {"device": lambda device: nullcontext(), "stream": lambda stream: stream, "Stream": Stream}
    fakes |= {
        "current_stream": lambda device: noted.stream,
        "CUDAGraph": Graph,
        "graph_pool_handle": lambda: next(handles),
    }
    fakes |= {"empty_cache": lambda: None, "default_generators": [generator]}
    for name, fake in {**fakes, "is_current_stream_capturing": lambda: False}.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    for name in ("_capture_streams", "_replays"):
        monkeypatch.setattr(captured_graph, name, {})
    return noted


def test_one_capture_at_a_time(cuda):
    """Whoever comes while another captures waits until it is done."""
    captures = [CudaGraphCapture(torch.device("cuda")) for _ in range(4)]
    with ThreadPoolExecutor(len(captures)) as pool:
        list(pool.map(lambda capture: [capture(lambda: 1) for _ in range(3)], captures))
    assert cuda.most == [1] * 12


def test_memory_whose_graphs_are_gone(cuda):
    """Graphs share a pool, which torch refuses once the last of them is gone: weights that move end all of them."""
    capture = CudaGraphCapture(torch.device("cuda"))
    graphs = [capture(lambda number=number: number) for number in range(3)]
    assert list(cuda.pools.values()) == [3]
    del graphs[1]
    graphs.append(capture(lambda: 3))
    assert list(cuda.pools.values()) == [3]
    graphs.clear()
    graphs += [capture(lambda number=number: number) for number in range(2)]
    assert list(cuda.pools.values()) == [0, 2]
    assert [graph() for graph in graphs] == [0, 1]


def test_copies(cuda):
    """A model is copied with its graphs: theirs stay what they are, and what the copy captures has its own memory."""
    capture = CudaGraphCapture(torch.device("cuda"))
    graph = capture(lambda: 5)
    assert copy.deepcopy(graph)() == 5
    copied = copy.deepcopy(capture)
    mine, its = capture(lambda: 6), copied(lambda: 7)
    assert (mine(), its()) == (6, 7)
    assert list(cuda.pools.values()) == [2, 1]


def test_replays_follow_each_other_on_any_streams(cuda):
    graphs = [CudaGraphCapture(torch.device("cuda"))(lambda number=number: number) for number in range(2)]
    first, second = cuda.stream, Stream()
    first.waited.clear()
    for stream, graph in ((first, 0), (first, 1), (second, 0), (second, 0), (first, 1)):
        cuda.stream = stream
        assert graphs[graph]() == graph
    assert (first.waited, second.waited) == ([second], [first])


def test_random_numbers_keep_their_state(cuda):
    """torch marks the state that it finds at the beginning, and leaves the mark if the capture fails."""
    CapturedGraph(lambda: cuda.states.append(cuda.generator.state), torch.device("cuda"))
    assert cuda.states == ["spare", "own"]
    with pytest.raises(ZeroDivisionError):
        CapturedGraph(lambda: 1 / 0, torch.device("cuda"))
    assert cuda.generator.state == "own"
    assert not cuda.inside


def test_nobody_captures_while_a_device_is_waited_for(monkeypatch):
    """CUDA would refuse to wait, and the capture would fail."""
    could_begin = []

    def synchronize(device):
        with ThreadPoolExecutor(1) as pool:
            could_begin.append(pool.submit(capture_lock.acquire, blocking=False).result())

    monkeypatch.setattr(torch.cuda, "synchronize", synchronize)
    monkeypatch.setattr(device_errors, "_words", {torch.device("cuda", 0): torch.zeros(1, dtype=torch.int64)})
    device_errors.check()
    assert could_begin == [False]


@pytest.mark.parametrize("in_place", [False, True])
def test_no_selection_is_recorded_while_another_captures(in_place, cuda):
    """Nor does it wait: the other may need a selection, which has a lock of its own. Afterwards it is recorded."""
    x = torch.zeros(1, 4, 3)
    kind = replay.Kind(0, addresses=(x.data_ptr(),), steady=replay.STEADY if in_place else 0)

    def capture(begun, ended):
        with capture_lock:
            begun()
            ended()

    call = (kind, lambda features: features, [x], {"features": x}, {})
    with in_another_thread(capture):
        assert replay._recording(*call) is None
    recording = replay._recording(*call)
    assert recording is (kind.in_place if in_place else kind.copying)
    assert len(recording.inputs) == (not in_place)


def test_a_selection_whose_recording_fails(cuda, monkeypatch):
    """It is not recorded, now or later, and a warning says why."""
    x = torch.zeros(1, 4, 3)
    kind, tried = replay.Kind(0), []

    def fail(*_):
        tried.append(1)
        raise RuntimeError("operation failed due to a previous error during capture\nand more")

    monkeypatch.setattr(replay, "CapturedGraph", fail)
    call = (kind, lambda features: features, [x], {"features": x}, {})
    with pytest.warns(UserWarning, match=r"without its CUDA graph, which failed \(operation failed [^\n]+ capture\)"):
        assert replay._recording(*call) is None
    assert replay._recording(*call) is None
    assert len(tried) == 1
    assert capture_lock.acquire(blocking=False)
    capture_lock.release()


# --- what CUDA does ---


def test_a_selection_while_another_captures(gpu):
    """It is as ever: the kernels run one by one."""
    x, relevance = torch.randn(2, 50, 16, device=gpu), torch.rand(2, 50, device=gpu)

    def kept():
        return select_script(x, None, 9, relevance=relevance).kept.tolist()

    def capture(begun, ended):
        CapturedGraph(lambda: (relevance + 1, begun(), ended()), gpu)

    replay._kinds.clear()
    expected = kept()
    with in_another_thread(capture):
        assert [kept() for _ in range(3)] == [expected] * 3
        assert [kind.copying for kind in replay._kinds.values()] == [None]
    assert [kept() for _ in range(3)] == [expected] * 3
    assert all(kind.copying for kind in replay._kinds.values())


def test_random_numbers_while_another_captures(gpu):
    """And after a capture that failed."""
    numbers = torch.ones(4, device=gpu)

    def capture(begun, ended):
        CapturedGraph(lambda: (numbers + 1, begun(), ended()), gpu)

    torch.manual_seed(5)
    expected = [torch.rand(5, device=gpu) for _ in range(2)]
    torch.manual_seed(5)
    with in_another_thread(capture):
        found = [torch.rand(5, device=gpu)]
    with pytest.raises(ZeroDivisionError):
        CapturedGraph(lambda: (numbers + 1, 1 / 0), gpu)
    found.append(torch.rand(5, device=gpu))
    assert all(map(torch.equal, found, expected))


def test_a_capture_beside_another_ones(gpu):
    """That of somebody who knows nothing of ours: both are right, and the thread stays on its stream."""
    numbers, others = torch.ones(4, device=gpu), torch.ones(4, device=gpu)
    graph = torch.cuda.CUDAGraph()

    def capture(begun, ended):
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            others.add_(1)
            begun()
            ended()

    with in_another_thread(capture):
        ours = CudaGraphCapture(gpu)(lambda: numbers + 1)
    assert torch.cuda.current_stream(gpu) == torch.cuda.default_stream(gpu)
    numbers.fill_(6)
    graph.replay()
    assert ours().tolist() == [7.0] * 4
    assert others.tolist() == [2.0] * 4
    torch.rand(1, device=gpu)


def test_replays_on_two_streams(gpu):
    """Products that are split along their inner dimension go through a workspace, which a thread's captures share."""
    torch.manual_seed(0)
    weights = [torch.randn(4096, 4096, device=gpu) / 64 for _ in range(2)]
    inputs = [torch.randn(16, 4096, device=gpu) for _ in range(2)]

    def chain(number):
        x = inputs[number]
        for _ in range(40):
            x = x @ weights[number]
        return x

    graphs = [CudaGraphCapture(gpu)(lambda number=number: chain(number)) for number in range(2)]
    alone = [graph().clone() for graph in graphs]
    streams = [torch.cuda.Stream(gpu) for _ in range(2)]
    torch.cuda.synchronize()
    for _ in range(30):
        results = []
        for graph, stream in zip(graphs, streams):
            with torch.cuda.stream(stream):
                results.append(graph().clone())
        torch.cuda.synchronize()
        assert all(torch.equal(result, one) for result, one in zip(results, alone))


class RecordedStream(torch.Stream):
    """A stream that only notes whom it waits for. torch's own comparison says of a stream and None "not unequal"."""

    def __new__(cls, number):
        return super().__new__(cls, stream_id=number, device_index=0, device_type=0)

    def __init__(self, number):
        self.waits = []

    def wait_stream(self, stream):
        self.waits.append(stream)


def test_work_of_another_stream_waits_for_the_work_before(monkeypatch):
    """Without a GPU: what `StreamOrder` tells the streams."""
    order, current = StreamOrder(), []
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: current[-1])
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    first, second = RecordedStream(1), RecordedStream(2)
    for stream in (first, first, second, second, first):
        current.append(stream)
        order.follow(torch.device("cuda"))
    assert first.waits == [second]
    assert second.waits == [first]

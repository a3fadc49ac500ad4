"""Selection as recorded CUDA graphs, and where nothing may wait for the device. Run by `test_fused.py`."""

from collections import OrderedDict

import pytest
import torch

pytest.importorskip("triton")

from tests.support.selection_judge import DEVICE, image
from vlprune import selection
from vlprune.selection import fused, use_fused
from vlprune.selection.fused import replay

RULES = ["released", "supplement", "filter"]
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@pytest.fixture(autouse=True)
def nothing_is_left_unsaid():
    yield
    fused.check()


@needs_gpu
def test_public_functions_are_dispatched_and_never_wait():
    x, q = image(9, 3, 200, 64, torch.bfloat16)
    for _ in range(3):  # compile, record, replay
        selection.select_script(x, q, 20)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        results = [
            *(selection.select_script(x, q, 20, fusion=rule).kept for rule in RULES),
            selection.select_script(x, q, 150).kept,
            selection.farthest_points(x, 20),
        ]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    with use_fused(False):
        for rule, kept in zip(RULES, results):
            assert torch.equal(kept, selection.select_script(x, q, 20, fusion=rule).kept)


@needs_gpu
def test_a_recording_answers_for_its_own_inputs():
    replay._kinds.clear()
    inputs = [image(seed, 2, 100, 64, torch.bfloat16) for seed in range(4)]
    with torch.inference_mode():
        results = [selection.select_script(x, q, 12) for x, q in inputs]
    results += [selection.select_script(x, q, 12) for x, q in inputs]
    with use_fused(False):
        for (x, q), result in zip(inputs * 2, results):
            want = selection.select_script(x, q, 12)
            assert torch.equal(result.kept, want.kept)
            assert torch.equal(result.relevance, want.relevance)
            assert torch.equal(result.order < 0, want.order < 0)  # each image stops where it would alone


@needs_gpu
def test_recorded_graph_weights_answer_for_their_own_inputs():
    inputs = [image(seed, 2, 99, 64, torch.bfloat16)[0] for seed in range(4)]
    first, second = ([selection.graph_weights(x, grid=(9, 11)) for x in inputs] for _ in range(2))  # the first records
    with use_fused(False):
        wanted = [selection.graph_weights(x, grid=(9, 11)) for x in inputs]
    for found, again, want in zip(first, second, wanted):
        assert torch.equal(found, again)
        assert torch.allclose(found, want, rtol=1e-4)
    assert not torch.equal(first[1], first[2])


def test_the_recordings_used_longest_ago_are_forgotten():
    kinds = OrderedDict((i, replay.Kind(1)) for i in range(replay.KEPT + 3))
    replay._forget_old(kinds)
    assert list(kinds) == list(range(3, replay.KEPT + 3))
    kinds = OrderedDict((i, replay.Kind(replay.HELD // 4)) for i in range(6))
    kinds.move_to_end(0)
    replay._forget_old(kinds)
    assert list(kinds) == [3, 4, 5, 0]


@needs_gpu
def test_inputs_that_stay_where_they_are_are_read_in_place():
    replay._kinds.clear()
    x, r = image(0, 2, 100, 64, torch.bfloat16)[0], torch.rand(2, 100, device=DEVICE)
    copies = []
    for seed in range(replay.STEADY + 4):
        x.copy_(image(seed, 2, 100, 64, torch.bfloat16)[0])
        got = selection.select_script(x, None, 12, relevance=r)
        assert torch.equal(got.relevance, r)
        copies.append(r.clone())  # never twice at one address
        elsewhere = selection.select_script(x, None, 12, tau=0.31, relevance=copies[-1])
        with use_fused(False):
            assert torch.equal(got.kept, selection.select_script(x, None, 12, relevance=r).kept)
            assert torch.equal(elsewhere.kept, selection.select_script(x, None, 12, tau=0.31, relevance=r).kept)
    assert [kind.in_place is not None for kind in replay._kinds.values()] == [True, False]
    turned = x.mT.contiguous().mT  # the same numbers, not contiguous
    for _ in range(replay.STEADY + 3):
        assert torch.equal(selection.select_script(turned, None, 12, relevance=r).kept, got.kept)


@needs_gpu
@pytest.mark.parametrize("shape", [(1, 576, 256, 64), (1, 3000, 64, 40)])
def test_in_a_graph_of_the_callers(shape):
    B, n, d, m = shape
    x, q = image(1, B, n, d, torch.bfloat16)
    for _ in range(2):
        selection.select_script(x, q, m)
    torch.cuda.synchronize()
    recorded = torch.cuda.CUDAGraph()
    with torch.cuda.graph(recorded):
        kept = selection.select_script(x, q, m).kept
    for seed in (1, 2):
        y, p = image(seed, B, n, d, torch.bfloat16)
        x.copy_(y)
        q.copy_(p)
        recorded.replay()
        assert torch.equal(kept, selection.select_script(y, p, m).kept)

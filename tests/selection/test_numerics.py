"""The same answer whatever surrounds the call: dtype, autocast, precision switches, layout, device."""

import contextlib
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from tests.support import selection_reference as reference
from vlprune.selection import (
    fuse,
    graph_keep,
    graph_scores,
    greedy_map,
    greedy_map_features,
    query_kernel,
    relevance_scores,
    select_script,
)
from vlprune.selection.greedy import greedy_on_device
from vlprune.selection.numerics import ascending, exact_float32
from vlprune.selection.relevance import relevance_on_device

CUDA = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
PRODUCTS = (torch.bmm, torch.baddbmm, torch.mv, torch.matmul, torch.Tensor.matmul, torch.Tensor.__matmul__)
DEVICES = ["cpu", pytest.param("cuda", marks=CUDA)]
RULES = ["released", "supplement", "filter"]


def image(seed, B=2, n=90, d=128, dtype=torch.float32, device="cpu"):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(B, n, d, generator=g) + 0.5 * torch.randn(B, 1, d, generator=g)
    return x.to(device, dtype), torch.randn(B, 7, d, generator=g).to(device, dtype)


def everything(x, q):
    """All that the package computes from an image."""
    r = relevance_scores(x, q)
    scores = graph_scores(x)
    kernel = query_kernel(x, r)
    kept = graph_keep(scores, 20)
    order = greedy_map(kernel, 40)
    return [
        r,
        scores,
        graph_scores(x, graph="full"),
        kernel,
        kept,
        order,
        greedy_map_features(x, r, 8),
        greedy_map_features(x, r, 8, candidates=kept),
        fuse(order, kept, 20, rule="supplement"),
        *[select_script(x, q, 12, fusion=rule).kept for rule in RULES],
    ]


def assert_same(got, want, exact=True):
    for a, b in zip(got, want, strict=True):
        assert a.dtype == b.dtype
        if exact or a.dtype == torch.int64:
            assert torch.equal(a.cpu(), b.cpu())
        else:
            torch.testing.assert_close(a.cpu(), b.cpu(), rtol=1e-5, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("device", DEVICES)
def test_any_dtype_is_computed_in_float32(dtype, device):
    x, q = image(0, dtype=dtype, device=device)
    results = everything(x, q)
    assert {t.dtype for t in results} == {torch.float32, torch.int64}
    assert {t.device for t in results} == {x.device}
    assert_same(results, everything(x.float(), q.float()), exact=device == "cpu")


def test_mixed_dtypes_are_fine():
    x, q = image(0, dtype=torch.bfloat16)
    assert torch.equal(select_script(x, q.float(), 9).kept, select_script(x, q, 9).kept)


@contextlib.contextmanager
def precision(level):
    old = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(level)
    try:
        yield
        assert torch.get_float32_matmul_precision() == level  # the user's choice is put back
    finally:
        torch.set_float32_matmul_precision(old)


@contextlib.contextmanager
def default_dtype(dtype):
    old = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(old)


SURROUNDINGS = {
    "autocast bf16": lambda device: torch.autocast(device, dtype=torch.bfloat16),
    "autocast fp16": lambda device: torch.autocast(device, dtype=torch.float16),
    "inference mode": lambda device: torch.inference_mode(),
    "gradients": lambda device: torch.enable_grad(),
    "precision high": lambda device: precision("high"),
    "precision medium": lambda device: precision("medium"),
    "default float64": lambda device: default_dtype(torch.float64),
    "default bfloat16": lambda device: default_dtype(torch.bfloat16),
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", SURROUNDINGS)
def test_surroundings_change_nothing(name, device):
    x, q = image(1, device=device)
    want = everything(x, q)
    x.requires_grad_()
    with SURROUNDINGS[name](device):
        got = everything(x, q)
    assert not any(t.requires_grad for t in got)
    assert_same(got, want)


def test_a_kernel_with_gradients_is_fine():
    x, q = image(1)
    kernel = query_kernel(x, relevance_scores(x, q))
    assert torch.equal(greedy_map(kernel.clone().requires_grad_(), 9), greedy_map(kernel, 9))


def test_inference_tensors_are_fine():
    x, q = image(1)
    want = everything(x, q)
    with torch.inference_mode():
        x, q = x.clone(), q.clone()
    assert_same(everything(x, q), want)


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="needs torch 2.9")
def test_precision_is_lowered_nowhere_and_put_back_after_an_error():
    seen = []

    class Spy(torch.overrides.TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            if func in PRODUCTS:
                seen.append((torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision))
            return func(*args, **(kwargs or {}))

    x, q = image(1)
    with precision("medium"):
        lowered = (torch.backends.cuda.matmul.fp32_precision, torch.backends.mkldnn.matmul.fp32_precision)
        assert lowered == ("tf32", "bf16")
        with Spy():
            everything(x, q)
        assert set(seen) == {("ieee", "ieee")}
        with pytest.raises(ValueError, match="finite"):
            graph_scores(x * torch.nan)
        assert (
            torch.backends.cuda.matmul.fp32_precision,
            torch.backends.mkldnn.matmul.fp32_precision,
        ) == lowered


@pytest.mark.parametrize("device", DEVICES)
def test_layout_does_not_matter_and_inputs_are_left_alone(device):
    x, q = image(2, device=device)
    want = everything(x, q)
    wide = torch.stack([x, -x], 3).transpose(1, 2)  # (B, d, n, 2)
    strided, expanded = wide[..., 0].transpose(1, 2), q.mT.contiguous().mT
    assert not strided.is_contiguous()
    copies = x.clone(), q.clone(), want[3].clone()
    assert_same(everything(strided, expanded), want)
    kernel = want[3].mT
    order = greedy_map(kernel, 40, candidates=want[4])
    assert torch.equal(order, greedy_map(kernel.contiguous(), 40, candidates=want[4]))
    assert torch.equal(x, copies[0])
    assert torch.equal(q, copies[1])
    assert torch.equal(want[3], copies[2])


def test_again_is_the_same():
    x, q = image(3)
    assert_same(everything(x, q), everything(x, q))


@pytest.mark.parametrize("threads", [1, 2])
def test_number_of_threads_does_not_matter(threads):
    x, q = image(4, n=300)
    want = everything(x, q)
    old = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        assert_same(everything(x, q), want, exact=False)
    finally:
        torch.set_num_threads(old)


def test_the_loop_never_waits_for_the_device(monkeypatch):
    """Reading a value back shows as `aten::_local_scalar_dense`; the checks do not show, as they are numpy's here."""
    monkeypatch.setattr("vlprune.selection.greedy.greedy_on_host", greedy_on_device)
    monkeypatch.setattr("vlprune.selection.relevance.relevance_on_host", relevance_on_device)
    x, q = image(5)
    counts = {}
    for m in (4, 30):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as trace:
            select_script(x, q, m)
        names = [event.name for event in trace.events()]
        counts[m] = sum(name in ("aten::_local_scalar_dense", "aten::nonzero") for name in names)
    assert counts == {4: 0, 30: 0}


@pytest.mark.parametrize("scale", [1.0, 1e-3, 1e4])
@pytest.mark.parametrize("n", [1, 2, 50, 301])
def test_ranking_matches_the_reference(scale, n):
    """Values that are all different, in runs of ties, all equal, and none."""
    g = torch.Generator().manual_seed(n)
    rough = torch.randint(0, 6, (4, n), generator=g) * (1 + 2e-7 * torch.randn(4, n, generator=g))
    for values in (torch.randn(4, n, generator=g), rough, torch.zeros(4, n), torch.zeros(0, n)):
        got = ascending(scale * values)
        assert got.dtype == torch.int64
        assert got.tolist() == [reference.ascending(row) for row in (scale * values).tolist()]


@CUDA
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("graph", ["bipartite", "full", "random"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_cpu_and_gpu_keep_the_same_tokens(rule, graph, dtype):
    for seed, n, d, m in [(0, 576, 256, 64), (1, 577, 1024, 192), (2, 64, 16, 40), (3, 1, 8, 1)]:
        x, q = image(seed, B=3, n=n, d=d, dtype=dtype)
        here = select_script(x, q, m, fusion=rule, graph=graph)
        there = select_script(x.cuda(), q.cuda(), m, fusion=rule, graph=graph)
        assert torch.equal(there.order.cpu(), here.order)
        assert torch.equal(there.kept.cpu(), here.kept)
        torch.testing.assert_close(there.relevance.cpu(), here.relevance, rtol=0, atol=1e-6)
        assert (there.redundancy is None) == (here.redundancy is None) == (rule == "released")
        if here.redundancy is not None:
            torch.testing.assert_close(there.redundancy.cpu(), here.redundancy, rtol=1e-5, atol=1e-6)


@CUDA
@pytest.mark.parametrize("rule", RULES)
def test_cpu_and_gpu_break_ties_alike(rule):
    x, q = image(6, B=2, n=48, d=64)
    tied = [
        x.repeat(1, 4, 1),
        x[:, :1].expand(2, 50, 64),
        torch.zeros(2, 20, 64),
        x[:, :, :3].repeat(1, 3, 1),
    ]
    for y in tied:
        z = q[..., : y.shape[2]]
        m = y.shape[1] * 3 // 4
        for relevance in (None, torch.ones(y.shape[:2]), torch.zeros(y.shape[:2])):
            words = {"fusion": rule} | ({} if relevance is None else {"relevance": relevance})
            here = select_script(y, z if relevance is None else None, m, **words)
            words = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in words.items()}
            there = select_script(y.cuda(), z.cuda() if relevance is None else None, m, **words)
            assert torch.equal(there.order.cpu(), here.order)
            assert torch.equal(there.kept.cpu(), here.kept)


@CUDA
def test_devices_must_agree():
    x, q = image(0)
    with pytest.raises(ValueError, match=r"query on cpu: must be on cuda:0 like the other arguments"):
        select_script(x.cuda(), q, 3)


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="needs torch 2.9")
def test_precision_of_two_threads():
    """It is one setting for both: the one that leaves first does not lower it under the other."""
    inside = threading.Barrier(2, timeout=60)
    left = threading.Event()
    seen = []

    def look():
        seen.append(torch.backends.cuda.matmul.fp32_precision)

    def first():
        with exact_float32(torch.device("cpu")):
            inside.wait()
        left.set()

    with precision("high"), ThreadPoolExecutor(1) as pool:
        look()
        future = pool.submit(first)
        with exact_float32(torch.device("cpu")):
            inside.wait()
            assert left.wait(60)
            look()
        future.result()
        look()
    assert seen == ["tf32", "ieee", "tf32"]


def test_a_torch_that_has_only_the_process_wide_switch(monkeypatch):
    """As before torch 2.9, where the backends have no precision of their own."""
    old = SimpleNamespace(cuda=SimpleNamespace(matmul=object()), mkldnn=SimpleNamespace())
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("high")
        monkeypatch.setattr(torch, "backends", old)
        with exact_float32(torch.device("cpu")):
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        monkeypatch.undo()
        torch.set_float32_matmul_precision(before)

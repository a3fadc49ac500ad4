"""Fused = reference, on a GPU at the sizes it is for, in Triton's interpreter at small ones. Run by `test_fused.py`."""

import itertools

import pytest
import torch

from vlprune import selection
from vlprune.selection import fused, fusion, graph, use_fused
from vlprune.selection.fused import replay
from vlprune.selection.fused.greedy import greedy
from vlprune.selection.numerics import TIE

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
RULES = ["released", "supplement", "filter"]
SETTINGS = {"tau": 0.3, "gamma": 5.0, "graph": "bipartite", "kernel": "s_prime", "rho": 0.5, "sign": 1}
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA device")
# images, tokens, channels, kept: odd, all of them, one, many images, and on a GPU those of LLaVA 1.5, NeXT and a video
SHAPES = [(2, 33, 24, 9), (1, 17, 8, 17), (2, 1, 5, 1)]
if GPU:
    SHAPES += [(300, 24, 16, 5), (1, 576, 4096, 64), (5, 577, 1024, 192), (1, 2880, 4096, 320), (1, 10816, 1024, 128)]


@pytest.fixture(autouse=True)
def nothing_is_left_unsaid():
    yield
    fused.check()


def image(seed, B, n, d, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(B, n, d, generator=g) + 0.5 * torch.randn(B, 1, d, generator=g)
    return x.to(DEVICE, dtype), torch.randn(B, 5, d, generator=g).to(DEVICE, dtype)


def script(x, q, m, rule, **changes):
    settings = SETTINGS | {"query_mask": None, "relevance": None} | changes
    got = fused.select_script(x, q, m, fusion=rule, **settings)
    with use_fused(False):
        return got, selection.select_script(x, q, m, fusion=rule, **settings)


def assert_same_choices(got, want, kernel, eps=1e-6):
    """Equal, or different first where the exact gains of the two tokens are tied to within rounding."""
    for a, b, L in zip(got, want, kernel.double()):
        assert len(set(a.tolist())) == len(a)
        apart = (a != b).nonzero()
        if len(apart) == 0:
            continue
        assert GPU, "in the interpreter they are equal"
        t = int(apart[0])
        block = L[a[:t]][:, a[:t]] + eps * torch.eye(t, device=L.device)
        gain = [(L[j, j] - L[j, a[:t]] @ torch.linalg.solve(block, L[a[:t], j])).item() for j in (a[t], b[t])]
        assert abs(gain[0] - gain[1]) <= 2 * TIE, (t, gain)


def assert_same(got, want, x, m, rule, kernel="s_prime", rho=0.5):
    torch.testing.assert_close(got.relevance, want.relevance, rtol=0, atol=1e-6)
    torch.testing.assert_close(got.redundancy, want.redundancy, rtol=1e-5, atol=2e-6)
    with use_fused(False):
        if rule != "filter" or torch.equal(got.redundancy, want.redundancy):
            assert_same_choices(got.order, want.order, selection.query_kernel(x, want.relevance, kind=kernel))
        keep = max(m, int(rho * x.shape[1] + 0.5)) if rule == "filter" else m
        survivors = graph.graph_keep(got.redundancy, keep)
        assert torch.equal(got.kept, fusion.fuse(got.order, survivors, m, rule=rule))
        if rule == "filter":
            assert all(set(o.tolist()) <= set(s.tolist()) for o, s in zip(got.order, survivors))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("B", "n", "d", "m"), SHAPES)
def test_script(B, n, d, m, dtype, rule):
    if not GPU and dtype != torch.float32 and (rule != "supplement" or n == 1):
        pytest.skip("the interpreter is slow")
    x, q = image(n, B, n, d, dtype)
    got, want = script(x, q, m, rule)
    assert_same(got, want, x, m, rule)


@pytest.mark.parametrize(
    ("graph_kind", "kernel", "sign", "masked"), [("full", "s", -1, True), ("random", "s_prime", 1, False)]
)
def test_settings(graph_kind, kernel, sign, masked):
    x, q = image(3, 2, 35 if not GPU else 777, 20)
    mask = None
    if masked:
        mask = torch.tensor([[True, True, False, True, False], [False, True, True, True, True]], device=DEVICE)
        q[~mask] = torch.nan  # never looked at
    for rule in ("supplement", "filter"):
        got, want = script(x, q, 8, rule, graph=graph_kind, kernel=kernel, sign=sign, query_mask=mask)
        assert_same(got, want, x, 8, rule, kernel)
    scores = fused.graph_scores(x, tau=0.1, gamma=2.0, graph=graph_kind)
    torch.testing.assert_close(
        scores.cpu(), graph.graph_scores(x.cpu(), tau=0.1, gamma=2.0, graph=graph_kind), rtol=1e-5, atol=2e-6
    )
    matrix = fused.query_kernel(x, want.relevance, kind=kernel)
    torch.testing.assert_close(
        matrix.cpu(), selection.query_kernel(x.cpu(), want.relevance.cpu(), kind=kernel), rtol=1e-5, atol=2e-6
    )
    assert torch.equal(matrix, matrix.mT)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", ["duplicates", "equal", "zero", "flat", "some zero"])
def test_ties(case, rule):
    if not GPU and rule == "filter" and case in ("equal", "flat"):
        pytest.skip("the interpreter is slow")
    x, q = image(6, 1, 8, 16)
    y = {
        "duplicates": x.repeat(1, 3, 1),
        "equal": x[:, :1].expand(1, 20, 16).contiguous(),
        "zero": torch.zeros_like(x),
        "flat": x[:, :, :3].repeat(1, 2, 1),  # rank 3: most of the order is by relevance
        "some zero": torch.cat([x, torch.zeros_like(x)], 1),
    }[case]
    got, want = script(y, q[..., : y.shape[2]], y.shape[1] * 3 // 4, rule)
    assert torch.equal(got.order, want.order)
    assert torch.equal(got.kept, want.kept)


@pytest.mark.parametrize("size", [1e-30, 1e-18, 1e15, 1e30])
def test_any_scale(size):
    x, q = image(4, 1, 19, 12)
    got, want = script(size * x, q, 6, "supplement")
    assert_same(got, want, x, 6, "supplement")


@pytest.mark.parametrize("c", [3, 9, 20])  # fewer candidates than choices, as many, more
def test_candidates(c):
    n, k = (24, 9) if not GPU else (1500, 9)
    x, q = image(7, 2, n, 32)
    at = torch.stack([torch.randperm(n, generator=torch.Generator().manual_seed(s))[:c] for s in range(2)]).to(DEVICE)
    with use_fused(False):
        r = selection.relevance_scores(x, q)
        kernel = selection.query_kernel(x, r)
        want = selection.greedy_map(kernel, k, candidates=at)
    assert torch.equal(fused.greedy_map(kernel, k, eps=1e-6, candidates=at), want)
    assert torch.equal(fused.greedy_map_features(x, r, k, kind="s_prime", eps=1e-6, candidates=at), want)


def test_rows_made_on_demand(monkeypatch):
    monkeypatch.setattr("vlprune.selection.fused.script.LIMIT", 0)
    for B, n, d, k in [(2, 40, 24, 12), *([(1, 5000, 256, 100), (2, 9000, 64, 40)] if GPU else [])]:
        x, q = image(n, B, n, d, torch.bfloat16)
        got, want = script(x, q, k, "supplement")
        assert_same(got, want, x, k, "supplement")
        with use_fused(False):
            assert (fused.farthest_points(x, k) == selection.farthest_points(x, k)).float().mean() > 0.8


@pytest.mark.parametrize(("B", "n", "d", "m"), SHAPES)
def test_farthest_points(B, n, d, m):
    x, _ = image(n, B, n, d)
    got = fused.farthest_points(x, m)
    with use_fused(False):
        want = selection.farthest_points(x, m)
    for a, b, y in zip(got, want, x.double()):
        apart = (a != b).nonzero()
        if len(apart):
            assert GPU
            t, unit = int(apart[0]), torch.nn.functional.normalize(y, dim=-1)
            near = [(1 - unit[a[:t]] @ unit[j]).min().item() for j in (a[t], b[t])]
            assert abs(near[0] - near[1]) <= 2 * TIE


def test_graph_keep_sees_ties():
    g = torch.Generator().manual_seed(0)
    scores = torch.randint(-3, 6, (2, 50), generator=g).float() * 10
    noisy = (scores * (1 + 2e-7 * torch.randn(2, 50, generator=g))).to(DEVICE)
    for keep in (1, 13, 37, 50):
        assert torch.equal(fused.graph_keep(noisy, keep).cpu(), graph.graph_keep(noisy.cpu(), keep))


def test_faults_are_told_by_the_next_call_and_by_check():
    x, q = image(8, 2, 20, 12)
    r = torch.rand(2, 20, device=DEVICE)
    bad, negative, kernel = x.clone(), r.clone(), torch.eye(6, device=DEVICE)[None].clone()
    bad[1, 7, 3], negative[0, 4], kernel[0, 2, 3] = torch.inf, -1.0, torch.nan
    settings = SETTINGS | {"query_mask": None, "fusion": "supplement"}
    off = torch.tensor([[0, 1, 99], [0, 1, 2]], device=DEVICE)
    for call, words in [
        (lambda: fused.select_script(bad, q, 5, relevance=None, **settings).kept, "features .* batch 1, token 7"),
        (lambda: fused.select_script(x, None, 5, relevance=negative, **settings).kept, "relevance .* batch 0, token 4"),
        (lambda: fused.select_script(x, q * torch.nan, 5, relevance=None, **settings).kept, "query must be finite"),
        (lambda: fused.greedy_map(kernel, 3, eps=1e-6, candidates=None), "kernel .* batch 0, row 2"),
        (lambda: fused.greedy_map_features(x, r, 3, kind="s", eps=1e-6, candidates=off), "candidates .* batch 0"),
    ]:
        kept = call()
        assert kept.min() >= 0
        assert kept.max() < 20
        assert all(len(set(row.tolist())) == len(row) for row in kept) or "candidates" in words
        with pytest.raises(ValueError, match=words):
            fused.check()
        call()
        if GPU:
            torch.cuda.synchronize()
        with pytest.raises(ValueError, match=words):
            fused.graph_scores(x, tau=0.3, gamma=5.0, graph="full")


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
        assert torch.equal(results[1], selection.select_script(x, q, 20).kept)


@needs_gpu
def test_a_recording_answers_for_its_own_inputs():
    replay._recordings.clear()
    inputs = [image(seed, 2, 100, 64, torch.bfloat16) for seed in range(4)]
    with torch.inference_mode():
        results = [selection.select_script(x, q, 12) for x, q in inputs]
    results += [selection.select_script(x, q, 12) for x, q in inputs]
    with use_fused(False):
        for (x, q), result in zip(inputs * 2, results):
            want = selection.select_script(x, q, 12)
            assert torch.equal(result.kept, want.kept)
            assert torch.equal(result.relevance, want.relevance)


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


@needs_gpu
@pytest.mark.parametrize(("n", "k", "shares"), [(576, 128, (16, 32, 100, 576)), (4000, 200, (31, 64, 300))])
def test_however_many_programs_share_an_image(n, k, shares):
    """With and without random delays, again and again: a race would show as a difference."""
    x, q = image(n, 1, n, 128)
    x[:, n // 2 :: 7] = x[:, : len(range(n // 2, n, 7))]  # duplicates
    with use_fused(False):
        kernel = selection.query_kernel(x, selection.relevance_scores(x, q))
    want = greedy(k, kernel=kernel)[0]
    for share, jitter in itertools.product(shares, (False, True)):
        for _ in range(5):
            assert torch.equal(greedy(k, kernel=kernel, share=share, jitter=jitter)[0], want), (share, jitter)

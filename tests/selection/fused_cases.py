"""Fused = reference, on a GPU at the sizes it is for, in Triton's interpreter at small ones. Run by `test_fused.py`."""

import itertools
import os

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

pytest.importorskip("triton")

from tests.support import selection_reference as reference
from tests.support.interpreter import launch_in_turns, look_once
from tests.support.selection_judge import DEVICE, ROUNDING, assert_greedy, assert_redundancy, exact_cosines, image
from vlprune import selection
from vlprune.selection import fused, fusion, graph, use_fused
from vlprune.selection.fused import ranks
from vlprune.selection.fused.device_errors import fault_word
from vlprune.selection.fused.greedy import greedy
from vlprune.selection.fused.token_table import measure
from vlprune.selection.numerics import TIE

GPU = torch.cuda.is_available()
RUNS = int(os.environ.get("VLPRUNE_RACES", "10"))  # more, to look for races in earnest
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
RULES = ["released", "supplement", "filter"]
needs_gpu = pytest.mark.skipif(not GPU, reason="needs a CUDA device")
# images, tokens, channels, kept: odd, all of them, one, many images, and on a GPU those of LLaVA 1.5, NeXT and a video
SHAPES = [(2, 33, 24, 9), (1, 17, 8, 17), (1, 24, 9, 9), (2, 1, 5, 1)]
if GPU:
    SHAPES += [(300, 24, 16, 5), (1, 576, 4096, 64), (5, 577, 1024, 192), (1, 2880, 4096, 320), (1, 10816, 1024, 128)]
    SHAPES += [(1, 2880, 320, 320)]
else:
    look_once()


@pytest.fixture(autouse=True)
def nothing_is_left_unsaid():
    yield
    fused.check()


def fused_script(x, q, m, **settings):
    """`select_script` by the fused kernels, on a CPU too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vlprune.selection.script.fused_for", lambda features: fused)
        return selection.select_script(x, q, m, **settings)


def script(x, q, m, rule, **settings):
    got = fused_script(x, q, m, fusion=rule, **settings)
    with use_fused(False):
        return got, selection.select_script(x, q, m, fusion=rule, **settings)


def assert_same(got, want, x, m, rule, kernel="s_prime", rho=0.5, graph_kind="bipartite"):
    """The reference's scores, the greedy's rule, and the fusion of the two; in the interpreter the same tokens too."""
    torch.testing.assert_close(got.relevance, want.relevance, rtol=0, atol=1e-6)
    n, survivors = x.shape[1], got.order
    if rule == "released":
        assert got.redundancy is want.redundancy is None
    else:
        for scores in (got.redundancy, want.redundancy):
            assert_redundancy(scores, x, graph=graph_kind)
        with use_fused(False):
            survivors = graph.graph_keep(got.redundancy, max(m, int(rho * n + 0.5)) if rule == "filter" else m)
    with use_fused(False):
        assert torch.equal(got.kept, fusion.fuse(got.order, survivors, m, rule=rule))
    for order, kept in zip(got.order.tolist(), survivors.tolist()):
        assert order == reference.stopped(order, kept, m) if rule == "supplement" else min(order) >= 0
    r = want.relevance.double() if kernel == "s_prime" else want.relevance.double().sqrt()
    weighted = exact_cosines(x) * r[:, :, None] * r[:, None]
    assert_greedy(got.order, weighted, survivors if rule == "filter" else None, gains=got.gains)
    if not GPU:
        assert torch.equal(got.order, want.order)
        assert torch.equal(got.kept, want.kept)


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
        assert_same(got, want, x, 8, rule, kernel, graph_kind=graph_kind)
    scores = fused.graph_scores(x, tau=0.1, gamma=2.0, graph=graph_kind)
    assert_redundancy(scores, x, tau=0.1, gamma=2.0, graph=graph_kind)
    matrix = fused.query_kernel(x, want.relevance, kind=kernel)
    torch.testing.assert_close(
        matrix.cpu(), selection.query_kernel(x.cpu(), want.relevance.cpu(), kind=kernel), rtol=1e-5, atol=2e-6
    )
    assert torch.equal(matrix, matrix.mT)


@pytest.mark.parametrize("rule", ["supplement", "filter"])
def test_given_redundancy_and_own_thresholds(rule):
    x, q = image(5, 2, 35 if not GPU else 200, 20)
    with use_fused(False):
        scores = graph.graph_scores(x, tau=0.1)
    for change in ({"redundancy": scores}, {"tau": "otsu"}):
        got, want = script(x, q, 8, rule, **change)
        assert torch.equal(got.kept, want.kept)
        assert torch.equal(got.order, want.order)
        assert torch.equal(got.redundancy, want.redundancy) or "tau" in change


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


def shared_greedy(m, programs, kernel, **words):
    """The greedy on a kernel by so many programs an image, in the interpreter too."""
    with pytest.MonkeyPatch.context() as patch:
        if not GPU:
            patch.setattr("vlprune.selection.fused.greedy.launch", launch_in_turns)
        return greedy(m, kernel=kernel, share=-(-kernel.shape[1] // programs), **words)


@st.composite
def stopping_cases(draw):
    """n, m, how many of each image's first m the graph keeps too, channels, duplicates, programs and a seed."""
    n = draw(st.integers(1, 9))
    m = draw(st.integers(1, n))
    agree = tuple(draw(st.integers(max(0, 2 * m - n), m)) for _ in range(2))
    rest = st.tuples(st.sampled_from([2, 12]), st.integers(0, n // 2), st.integers(1, 3), st.integers(0, 10**6))
    return n, m, agree, *draw(rest)


@settings(derandomize=True, deadline=None, max_examples=10 if not GPU else 100)
@given(case=stopping_cases())
@example(case=(9, 4, (4, 0), 12, 0, 3, 0))  # the graph keeps all of the first m, and none
@example(case=(7, 5, (3, 4), 12, 0, 2, 1))  # n < 2m
@example(case=(6, 6, (6, 6), 12, 0, 2, 2))  # m = n
@example(case=(9, 4, (1, 2), 2, 4, 3, 3))  # v² is spent after two choices, and there are duplicates
def test_an_images_programs_stop_when_supplement_has_enough(case):
    n, m, agree, d, copies, programs, seed = case
    k = min(2 * m, n)
    x, q = image(seed, 2, n, d)
    x[:, n - copies :] = x[:, :copies].clone()
    with use_fused(False):
        kernel = selection.query_kernel(x, selection.relevance_scores(x, q))
    whole, added, _ = greedy(k, kernel=kernel, share=n)
    kept = [reference.survivors(order, m, both, seed) for order, both in zip(whole.tolist(), agree)]
    survives = torch.zeros(2, n, dtype=torch.int8, device=DEVICE).scatter_(1, torch.tensor(kept, device=DEVICE), 1)
    order, gains, place = shared_greedy(m, programs, kernel, survives=survives)
    assert order.tolist() == [reference.stopped(*row, m) for row in zip(whole.tolist(), kept)]
    assert (order >= 0).sum(1).tolist() == [2 * m - both for both in agree]
    torch.testing.assert_close(gains, added.where(order >= 0, 0.0), rtol=0, atol=ROUNDING)
    for row, places in zip(order.tolist(), place.tolist()):
        assert places == [row.index(token) if token in row else k for token in range(n)]
    fused_kept = ranks.fuse(place, m, k, survives, None).tolist()
    assert fused_kept == [reference.fuse(*row, m, "supplement") for row in zip(whole.tolist(), kept)]


@pytest.mark.parametrize("levels", [1, 4, 30])
def test_survivors_with_ties_are_the_same_in_list_and_marks(levels):
    g = torch.Generator().manual_seed(levels)
    scores = torch.randint(levels, (3, 50), generator=g) * (1 + 2e-7 * torch.randn(3, 50, generator=g))
    for keep in (1, 13, 50):
        found = ranks.marked_survivors(ranks.rank(scores.to(DEVICE)), keep)
        assert found.dtype == torch.int8
        listed = ranks.survivors(ranks.rank(scores.to(DEVICE)), keep)
        assert torch.equal(torch.zeros_like(found).scatter_(1, listed, 1), found)
        assert listed.tolist() == [sorted(reference.ascending(row)[:keep]) for row in scores.tolist()]


def test_rows_made_on_demand(monkeypatch):
    monkeypatch.setattr("vlprune.selection.fused.backend.MATRIX_BYTES", 0)
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
    x, q = image(8, 2, 8, 12)
    r = torch.rand(2, 8, device=DEVICE)
    bad, negative, kernel = x.clone(), r.clone(), torch.eye(6, device=DEVICE)[None].clone()
    bad[1, 7, 3], negative[0, 4], kernel[0, 2, 3] = torch.inf, -1.0, torch.nan
    rule = {"fusion": "supplement"}
    wrong_scores = r.clone()
    wrong_scores[1, 6] = torch.nan
    empty = torch.tensor([[True] * 5, [False] * 5], device=DEVICE)
    off = torch.tensor([[0, 1, 99], [0, 1, 2]], device=DEVICE)
    for call, words in [
        (lambda: fused_script(bad, q, 3, **rule).kept, "features at batch 1, token 7: must be finite"),
        (lambda: fused_script(x, None, 3, relevance=negative, **rule).kept, "relevance at batch 0, token 4: must be"),
        (lambda: fused_script(x, q * torch.nan, 3, **rule).kept, "query at batch .: must be finite"),
        (lambda: fused_script(x, q, 3, query_mask=empty, **rule).kept, "query_mask without any True at batch 1"),
        (lambda: fused_script(x, q, 3, redundancy=wrong_scores, **rule).kept, "scores at batch 1, token 6: must be"),
        (lambda: fused.greedy_map(kernel, 3, eps=1e-6, candidates=None), "kernel at batch 0, row 2: must be"),
        (
            lambda: fused.greedy_map_features(x, r, 3, kind="s", eps=1e-6, candidates=off),
            "candidates at batch 0: must be",
        ),
    ]:
        kept = call()
        assert kept.min() >= 0
        assert kept.max() < 8
        assert all(len(set(row.tolist())) == len(row) for row in kept) or "candidates" in words
        with pytest.raises(ValueError, match=words):
            fused.check()
        call()
        if GPU:
            torch.cuda.synchronize()
        with pytest.raises(ValueError, match=words):
            fused.graph_scores(x, tau=0.3, gamma=5.0, graph="full")


@pytest.mark.parametrize("d", [5, 26, 64] if GPU else [5])
@pytest.mark.parametrize("dtype", DTYPES)
def test_more_choices_than_directions(d, dtype):
    """Beyond the rank v² is a few ε: tensor cores, which truncate, would add to it."""
    n = 4 * d
    x, _ = image(d, 2, n, d, dtype)
    x[:, -3:-1], x[:, -1] = x[:, :2], 0.0
    r = torch.ones(2, n, device=DEVICE)
    order = fused.greedy_map_features(x, r, n, kind="s_prime", eps=1e-6, candidates=None)
    kernel = exact_cosines(x)
    assert_greedy(order, kernel)
    for got, L in zip(order, kernel):
        gains = torch.linalg.slogdet(L[got[:d]][:, got[:d]] + 1e-6 * torch.eye(d, device=DEVICE)).logabsdet
        assert gains > d * torch.log(torch.tensor(1e-5))  # the first d choices are directions
    if d < 64:  # there a token's v² is 1e-5, the border itself
        with use_fused(False):
            assert torch.equal(order.cpu(), selection.greedy_map_features(x.cpu(), r.cpu(), n))


@pytest.mark.parametrize("dtype", DTYPES)
def test_more_choices_than_many_channels(dtype, monkeypatch):
    """Then products are of halves: the rule's choices while there are directions, and beyond them nearly all."""
    n, d, k = (1200, 600, 900) if GPU else (36, 12, 18)
    if not GPU:
        monkeypatch.setattr("vlprune.selection.fused.backend.FEW_CHANNELS", 0)
    x, q = image(n, 1, n, d, dtype)
    with use_fused(False):
        r = selection.relevance_scores(x, q)
        want = selection.greedy_map_features(x, r, k)
    order = fused.greedy_map_features(x, r, k, kind="s_prime", eps=1e-6, candidates=None)
    assert_greedy(order[:, :d], exact_cosines(x) * r[:, :, None] * r[:, None])
    assert len(set(order[0].tolist())) == k
    assert len(set(order[0].tolist()) & set(want[0].tolist())) >= 0.95 * k


@needs_gpu
@pytest.mark.parametrize("made", ["from a matrix", "from features"])
@pytest.mark.parametrize("stops", [False, True])
@pytest.mark.parametrize(("n", "k", "shares"), [(576, 128, (16, 32, 100, 576)), (4000, 200, (31, 64, 300))])
def test_however_many_programs_share_an_image(n, k, shares, stops, made):
    """With and without random delays, and while others keep the GPU busy: a race would show as a difference."""
    x, q = image(n, 1, n, 128 if made == "from a matrix" else 512)
    x[:, n // 2 :: 7] = x[:, : len(range(n // 2, n, 7))]  # duplicates
    with use_fused(False):
        r = selection.relevance_scores(x, q)
    if made == "from a matrix":
        source = {"kernel": fused.query_kernel(x, r, kind="s_prime")}
    else:
        source = {"features": (x, measure(x, fault_word(x.device), given=r)), "exact": False}
    if stops:
        order = greedy(2 * k, **source)[0].tolist()[0]
        kept = torch.tensor([reference.survivors(order, k, k // 2, 0)], device=DEVICE)
        source["survives"] = torch.zeros(1, n, dtype=torch.int8, device=DEVICE).scatter_(1, kept, 1)
    want = greedy(k, **source)[0]
    assert (want >= 0).sum() == (2 * k - k // 2 if stops else k)
    other, load = torch.cuda.Stream(), torch.randn(2048, 2048, device=DEVICE, dtype=torch.bfloat16)
    for share, jitter in itertools.product(shares, (False, True)):
        results = []
        for run in range(RUNS):
            if run % 2:
                with torch.cuda.stream(other):
                    load @ load
            results.append(greedy(k, **source, share=share, jitter=jitter)[0])
        assert torch.equal(torch.cat(results), want.expand(RUNS, -1)), (share, jitter)


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("programs", [131, 47, 20] if GPU else [4, 1])
def test_rows_are_kept_while_they_serve(exact, programs, monkeypatch):
    """Late steps, for which rows take longer to make than to ask for: many rows at once, and kept over exchanges."""
    n, d, k = (6000, 1024, 700) if GPU else (40, 48, 30)
    monkeypatch.setattr("vlprune.selection.fused.greedy.PATIENT", 64 if GPU else 4)
    x, q = image(n, 1, n, d)
    with use_fused(False):
        kernel = selection.query_kernel(x, selection.relevance_scores(x, q))
    order, gains, _ = shared_greedy(k, programs, kernel, exact=exact)
    assert_greedy(order, kernel, gains=gains)
    for run in range(RUNS if GPU else 0):
        again = shared_greedy(k, programs, kernel, exact=exact, jitter=run % 2 == 1)
        assert torch.equal(again[0], order)
        assert torch.equal(again[1], gains)

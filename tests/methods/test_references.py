"""Every method against a slow loop in float64 that is written from its description."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import layers_reference
from tests.support import methods_reference as reference
from tests.support.token_views import draw, floats, project_one
from vlprune import (
    TRIM,
    AttentionTopK,
    AveragePool,
    CDPruner,
    DivPrune,
    DppOnly,
    GraphOnly,
    Random,
    RelevanceTopK,
    ScriptReleased,
    UniformGrid,
    VisionZip,
    get_method,
    list_methods,
)
from vlprune.methods import InLLMMethod
from vlprune.types import TokenView

EXACT = settings(derandomize=True, deadline=None, max_examples=40)
EXACT_GRIDS = settings(derandomize=True, deadline=None, max_examples=100)


#: Methods inside the LLM whose reference is that of another class, with other settings.
SHARED = {"SparseVLMPlus": "SparseVLM"}


@pytest.mark.parametrize("name", list_methods())
def test_every_method_has_a_reference(name):
    kind = type(get_method(name))
    if issubclass(kind, InLLMMethod):  # tests/pruning/layers compares these
        assert hasattr(layers_reference, SHARED.get(kind.__name__, kind.__name__))
    else:
        assert f"reference.{name}(" in Path(__file__).read_text(encoding="utf-8")
        assert callable(getattr(reference, name))


@st.composite
def cases(draw_from, least=1, most=17, **more):
    """Settings of `draw` for two images, and m; duplicates and zero vectors at times, bfloat16 at times."""
    n = draw_from(st.integers(least, most))
    options = {"seed": draw_from(st.integers(0, 10**6)), "B": 2, "n": n}
    options["copies"] = draw_from(st.sampled_from([0, 0, n // 3]))
    options["zeros"] = draw_from(st.sampled_from([0, 0, n // 4]))
    options["dtype"] = draw_from(st.sampled_from([torch.float32, torch.float32, torch.bfloat16]))
    options.update({name: draw_from(choice) for name, choice in more.items()})
    return options, draw_from(st.integers(1, n))


def check(chosen, b, view, want, size=None):
    """Image b's kept tokens and embeddings are those wanted: (tokens, {place: embedding})."""
    kept, replaced = want
    size = chosen.kept.shape[1] if size is None else size
    assert chosen.kept[b, :size].tolist() == kept
    if chosen.embeddings is None:
        assert not replaced
        return
    expected = view.features[b, kept].double()
    for place, embedding in replaced.items():
        expected[place] = torch.tensor(embedding, dtype=torch.float64)
    rough = {torch.float32: 1e-5, torch.bfloat16: 2e-2}[view.features.dtype]
    torch.testing.assert_close(chosen.embeddings[b, :size].double(), expected, rtol=rough, atol=rough)


@EXACT
@given(cases())
def test_attention_top_k(case):
    options, m = case
    view, _ = draw(**options)
    chosen = AttentionTopK(keep=m).select(view, None)
    for b in range(2):
        check(chosen, b, view, (reference.attention_top_k(floats(view.attention[b]), m), {}))
    assert torch.equal(chosen.scores, view.attention)


@EXACT
@given(cases(sign=st.sampled_from([1, -1])))
def test_relevance_top_k(case):
    options, m = case
    view, query = draw(**options)
    chosen = RelevanceTopK(keep=m).select(view, query)
    for b in range(2):
        tokens, question = floats(query.image[b]), floats(query.text[b, 0])
        check(chosen, b, view, (reference.relevance_top_k(tokens, question, query.sign, m), {}))


@EXACT
@given(cases(), st.sampled_from([(0.3, 5.0), (0.0, 1.0), (-0.2, 0.5)]))
def test_graph_only(case, graph):
    options, m = case
    view, _ = draw(**options)
    chosen = GraphOnly(keep=m, tau=graph[0], gamma=graph[1]).select(view, None)
    for b in range(2):
        check(chosen, b, view, (reference.graph_only(floats(view.features[b]), m, *graph), {}))


@EXACT
@given(cases())
def test_divprune(case):
    options, m = case
    view, _ = draw(**options)
    chosen = DivPrune(keep=m).select(view, None)
    for b in range(2):
        order = reference.divprune(floats(view.features[b]), m)
        assert chosen.order[b].tolist() == order
        check(chosen, b, view, (sorted(order), {}))


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 17), sign=st.sampled_from([1, -1]), data=st.data())
def test_cdpruner(seed, n, sign, data):
    m = data.draw(st.integers(1, n))
    view, query = draw(seed, 2, n, sign=sign)
    chosen = CDPruner(keep=m).select(view, query)
    for b in range(2):
        image = floats(view.features[b]), floats(query.image[b]), floats(query.text[b, 0])
        order = reference.cdpruner(*image, sign, m)
        assert chosen.order[b].tolist() == order
        check(chosen, b, view, (sorted(order), {}))


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 17), sign=st.sampled_from([1, -1]), data=st.data())
def test_script(seed, n, sign, data):
    """The paper's fusion; the released one is what CDPruner computes."""
    m = data.draw(st.integers(1, n))
    view, query = draw(seed, 2, n, sign=sign)
    paper = get_method("script", keep=m).select(view, query)
    released = get_method("script", fusion="released", keep=m).select(view, query)
    for b in range(2):
        image = floats(view.features[b]), floats(query.image[b]), floats(query.text[b, 0])
        check(paper, b, view, (reference.script(*image, sign, m), {}))
        assert released.order[b].tolist() == reference.cdpruner(*image, sign, m)


@EXACT_GRIDS
@given(seed=st.integers(0, 10**6), n=st.integers(1, 20), sign=st.sampled_from([1, -1]), data=st.data())
def test_script_plus(seed, n, sign, data):
    m, asked = data.draw(st.integers(1, n)), data.draw(st.integers(0, 2))
    view, query = draw(seed, 2, n, sign=sign)
    query = replace(query, source=data.draw(st.sampled_from(["clip", "llm"])))
    if asked:  # a question that says what one or two tokens say, which is little from 9 tokens on
        query = replace(query, text=sign * query.image[:, :asked].mean(1, keepdim=True))
    chosen = get_method("script_plus", keep=m).select(view, query)
    for b in range(2):
        image = floats(view.features[b]), floats(query.image[b]), floats(query.text[b, 0])
        order = reference.script_plus(*image, sign, m, view.grid, query.source)
        told = int((chosen.gains[b] > 1e-5).sum())  # what adds less ties with what adds nothing
        assert chosen.order[b, :told].tolist() == order[:told]
        if told == m:
            check(chosen, b, view, (sorted(order), {}))


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 17), data=st.data())
def test_dpp_only(seed, n, data):
    m = data.draw(st.integers(1, n))
    view, _ = draw(seed, 2, n)
    chosen = DppOnly(keep=m).select(view, None)
    for b in range(2):
        order = reference.dpp_only(floats(view.features[b]), m)
        assert chosen.order[b].tolist() == order
        check(chosen, b, view, (sorted(order), {}))


@pytest.mark.parametrize("n", [1, 7, 576, 3000])
def test_random(n):
    for m, seed in ((1, 0), (n, 3), ((n + 1) // 2, 12345)):
        chosen = Random(keep=m, seed=seed).select(TokenView(torch.zeros(2, n, 1), (1, n)), None)
        order = reference.random(n, m, seed)
        assert chosen.order.tolist() == [order] * 2
        assert chosen.kept.tolist() == [sorted(order)] * 2
        assert chosen.scores is None


@EXACT
@given(cases(sign=st.sampled_from([1, -1])))
def test_script_released(case):
    options, m = case
    view, query = draw(**options)
    chosen = ScriptReleased(keep=m).select(view, query)
    for b in range(2):
        image = floats(view.features[b]), floats(query.image[b]), floats(query.text[b, 0])
        order = reference.script_released(*image, query.sign, m)
        assert chosen.order[b].tolist() == order
        check(chosen, b, view, (sorted(order), {}))


@EXACT
@given(cases(sign=st.sampled_from([1, -1])))
def test_trim(case):
    options, m = case
    view, query = draw(**options)
    chosen = TRIM(keep=m).select(view, query)
    assert chosen.sizes is None
    for b in range(2):
        image = floats(query.image[b]), floats(view.tower[b]), floats(query.text[b, 0])
        check(chosen, b, view, reference.trim(*image, query.sign, m, project_one))


@EXACT
@given(cases(least=2, most=40, sign=st.sampled_from([1, -1])))
def test_trim_adaptive(case):
    options, m = case
    view, query = draw(**options)
    chosen = TRIM(keep=m, adaptive=True).select(view, query)
    assert chosen.kept.shape[1] == max(chosen.sizes)
    for b, size in enumerate(chosen.sizes):
        image = floats(query.image[b]), floats(view.tower[b]), floats(query.text[b, 0])
        check(chosen, b, view, reference.trim(*image, query.sign, m, project_one, adaptive=True), size)
        assert set(chosen.kept[b, size:].tolist()) <= set(chosen.kept[b, :size].tolist())


@pytest.mark.parametrize("contextual", [None, 0, 1, 4])
@EXACT
@given(cases(cls=st.booleans()))
def test_visionzip(contextual, case):
    options, m = case
    view, _ = draw(**options)
    merged = round(m * 5 / 32 - 1e-9) if contextual is None else min(contextual, m - 1)
    chosen = VisionZip(keep=m, contextual=None if contextual is None else merged).select(view, None)
    for b in range(2):
        cls = floats(view.cls[b]) if view.cls is not None else None
        image = floats(view.attention[b]), floats(view.keys[b]), floats(view.tower[b]), cls
        check(chosen, b, view, reference.visionzip(*image, m - merged, merged, project_one))


@EXACT_GRIDS
@given(rows=st.integers(1, 9), columns=st.integers(1, 9), data=st.data())
def test_uniform_grid_and_average_pool(rows, columns, data):
    n = rows * columns
    m = data.draw(st.integers(1, n))
    view, _ = draw(m, 2, n, grid=(rows, columns), dtype=data.draw(st.sampled_from([torch.float32, torch.bfloat16])))
    plain, pooled = UniformGrid(keep=m).select(view, None), AveragePool(keep=m).select(view, None)
    for b in range(2):
        check(plain, b, view, (reference.uniform_grid(view.grid, m), {}))
        want = reference.average_pool(floats(view.features[b]), view.grid, m)
        check(pooled, b, view, want if m < n else (want[0], {}))

"""Coverage against slow and obvious counts."""

from dataclasses import replace

import pytest
import torch

from vlprune.errors import UserError
from vlprune.evaluation.coverage import (
    CoverageRun,
    area_under_curve,
    ask_photographs,
    measure_coverage,
    measure_methods,
    methods_without_llm,
    select_tokens,
    standardise,
    why_not_without_llm,
)
from vlprune.evaluation.photographs import drawn_photographs, tokens_on
from vlprune.evaluation.run_folder import RunFolder
from vlprune.methods import FastV, InLLMMethod, Random, RelevanceTopK, UniformGrid, get_method, list_methods
from vlprune.types import Selection, TokenView

GRID, D = (12, 12), 16


@pytest.fixture(scope="module")
def photographs():
    return drawn_photographs("validation", 6)


@pytest.fixture(scope="module")
def views(photographs):
    draw = torch.Generator().manual_seed(0)
    features = torch.randn(len(photographs), GRID[0] * GRID[1], D, generator=draw)
    return [
        TokenView(row[None], GRID, row[None], torch.rand(1, len(row), generator=draw), row[None], project=lambda x: x)
        for row in features
    ]


@pytest.fixture(scope="module")
def asked(photographs, views):
    return ask_photographs(photographs, views, seed=0)


def tokens_of(photograph, name):
    """The tokens on things of a class, as a set."""
    on = tokens_on(photograph.cover(GRID))
    found = set()
    for region, row in zip(photograph.regions, on):
        if region.name == name:
            found |= set(row.nonzero()[:, 0].tolist())
    return found


def test_questions_are_what_classes_look_like_in_other_photographs(photographs, views, asked):
    for one in asked:
        names = {region.name for region in one.photograph.regions}
        for name, question in zip(one.classes, one.questions):
            assert name in names
            others = [(i, other) for i, other in enumerate(photographs) if i != one.number]
            rows = [views[i].features[0, token] for i, other in others for token in tokens_of(other, name)]
            torch.testing.assert_close(question, torch.stack(rows).mean(0), atol=1e-5, rtol=1e-5)


def test_wrong_questions_are_about_other_classes(photographs, views, asked):
    for one in asked:
        assert one.wrong.shape == one.questions.shape
        assert not any(torch.equal(a, b) for a, b in zip(one.questions, one.wrong))


def test_a_class_on_one_photograph_is_not_asked_about(photographs, views):
    pair = photographs[:2]
    shared = {region.name for region in pair[0].regions} & {region.name for region in pair[1].regions}
    assert {region.name for one in pair for region in one.regions} > shared
    assert [set(one.classes) for one in ask_photographs(pair, views[:2], 0)] == [shared, shared]
    with pytest.raises(UserError, match="two classes of things"):
        ask_photographs(photographs[:1], views[:1], 0)


@pytest.mark.parametrize("method", [UniformGrid(keep=9), RelevanceTopK(keep=9), Random(keep=9)])
def test_what_is_measured(asked, method):
    for one in asked:
        selection = select_tokens(method, one, one.questions)
        rows = selection.kept.tolist()
        assert len(rows) == (len(one.classes) if method.needs_query else 1)
        line = measure_coverage(one, selection)
        on = [set(row.nonzero()[:, 0].tolist()) for row in one.on]
        regions = one.photograph.regions
        expected = []
        for q, name in enumerate(one.classes):
            kept = set(rows[q if method.needs_query else 0])
            expected += [int(bool(kept & on[i])) for i, region in enumerate(regions) if region.name == name]
        assert line["asked"] == expected
        seen = [sum(bool(set(row) & on[i]) for row in rows) / len(rows) for i in range(len(regions))]
        assert line["all"] == pytest.approx(seen, abs=1e-4)
        unit = torch.nn.functional.normalize(one.view.features[0], dim=1)
        cosines = []
        for row in rows:
            dropped = [i for i in range(one.view.n) if i not in set(row)]
            cosines.append(sum(max(float(unit[i] @ unit[j]) for j in row) for i in dropped) / len(dropped))
        assert line["explained"] == pytest.approx(sum(cosines) / len(cosines), abs=1e-4)


def test_merged_tokens_explain_by_what_they_are(asked):
    one = asked[0]
    kept = torch.tensor([[0, 1]])
    perfect = one.view.features[0, [5, 9]][None]
    plain = measure_coverage(one, Selection(kept))["explained"]
    assert measure_coverage(one, Selection(kept, embeddings=perfect))["explained"] > plain


def test_standardised_channels(views):
    loud = [replace(view, features=view.features * torch.arange(1, D + 1) + 100) for view in views]
    every = torch.cat([view.features[0] for view in standardise(loud)]).double()
    torch.testing.assert_close(every.mean(0), torch.zeros(D, dtype=torch.float64), atol=1e-3, rtol=0)
    torch.testing.assert_close(every.std(0), torch.ones(D, dtype=torch.float64), atol=1e-3, rtol=0)
    assert all(view.tower is view.features for view in standardise(loud))


def test_random_draws_anew_for_each_photograph(asked):
    kept = {tuple(select_tokens(Random(keep=9), one, one.questions).kept[0].tolist()) for one in asked}
    assert len(kept) == len(asked)


def test_methods_are_those_before_the_llm():
    every = {name for name in list_methods() if not isinstance(get_method(name), InLLMMethod)}
    assert set(methods_without_llm()) == every
    assert "fastv" not in every
    blind = {name for name in every if why_not_without_llm(get_method(name), attention=False) is not None}
    assert blind == {name for name in every if get_method(name).needs_attention}
    assert why_not_without_llm(Random(keep=9) + FastV(keep=4)) == "it chooses inside the LLM, and here is none."


def test_every_method_runs(asked):
    for name in methods_without_llm():
        kept = select_tokens(get_method(name, keep=9), asked[0], asked[0].questions).kept
        assert kept.shape[1] == 9


def test_a_run_goes_on_where_it_stopped(tmp_path, photographs, asked):
    cells = {"random@9": Random(keep=9), "relevance_top_k@9": RelevanceTopK(keep=9)}
    ticks = []

    def run():
        folder = RunFolder(tmp_path / "run", "study coverage", {})
        one = CoverageRun(None, photographs, folder, (9,), tick=lambda name, count: ticks.append(name))
        return measure_methods(one, asked, cells)

    first = run()
    count = len(ticks)
    assert count == 2 * len(asked)
    assert run() == first
    assert len(ticks) == count
    path = tmp_path / "run" / "answers" / "random@9.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    assert run() == first
    assert ticks[count:] == ["random@9"]


def test_area_under_the_curve():
    draw = torch.Generator().manual_seed(1)
    scores = torch.randint(0, 6, (40,), generator=draw).float()
    inside = torch.rand(40, generator=draw) < 0.4
    pairs = [(float(a), float(b)) for a in scores[inside] for b in scores[~inside]]
    expected = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    assert area_under_curve(scores, inside, ~inside) == pytest.approx(expected)
    assert area_under_curve(scores, inside, torch.zeros(40, dtype=torch.bool)) is None

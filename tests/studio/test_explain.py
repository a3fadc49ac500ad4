"""Script's steps, against a slow float64 transcription and against what Script keeps."""

import math

import pytest
import torch

from vlprune import Script, ScriptPlus
from vlprune.studio.explain import compute_steps, describe_steps, explained_script, meets
from vlprune.types import Query, TokenView


@pytest.fixture
def image():
    torch.manual_seed(3)
    centres = torch.randn(6, 12)
    features = (centres[torch.randint(6, (40,))] + 0.4 * torch.randn(40, 12))[None]
    text = centres[:1, None] + 0.1
    return TokenView(features, (5, 8)), Query(features, text, 1, "llm", ("what?",))


def slow_redundancy(features, tau, gamma, graph):
    """d · exp(γ (μ − τ)) token by token, in Python's floats."""
    rows = features[0].double().tolist()

    def cosine(a, b):
        dot = sum(x * y for x, y in zip(a, b))
        return dot / math.sqrt(sum(x * x for x in a)) / math.sqrt(sum(y * y for y in b))

    found = []
    for i, one in enumerate(rows):
        met = [
            cosine(one, other) for j, other in enumerate(rows) if (j % 2 != i % 2 if graph == "bipartite" else j != i)
        ]
        edges = [value for value in met if value >= tau]
        mean = sum(edges) / len(edges) if edges else 0.0
        found.append((len(edges), len(edges) * math.exp(gamma * (mean - tau)) if edges else sum(met) / len(met)))
    return found


@pytest.mark.parametrize("graph", ["bipartite", "full"])
@pytest.mark.parametrize("fusion", ["supplement", "filter"])
def test_numbers_of_each_step(image, graph, fusion):
    view, query = image
    script = Script(keep=9, graph=graph, fusion=fusion)
    steps = compute_steps(view, query, script)
    assert steps.kept == script.select(view, query).kept[0].tolist()
    slow = slow_redundancy(view.features, 0.3, 5.0, graph)
    for token, (degree, score) in enumerate(slow):
        assert int(steps.edges(token).sum()) == degree
        assert float(steps.redundancy[token]) == pytest.approx(score, rel=1e-5)
    least = sorted(range(40), key=lambda token: (slow[token][1], token))[: 9 if fusion == "supplement" else 20]
    assert steps.survivors == sorted(least)
    if fusion == "supplement":
        both = [token for token in steps.order[:9] if token in least]
        assert steps.kept == sorted(both + steps.order[9:])
        assert len(steps.order) == len(steps.gains) == 18 - len(both)


def test_words_carry_the_numbers(image):
    steps = compute_steps(*image, Script(keep=9))
    first = steps.order[0]
    graph, survivors, relevance, order, fusion = describe_steps(steps, first)
    assert f"joined with {int(steps.edges(first).sum())} of the 20 tokens" in graph.token
    assert survivors.token.startswith("stays" if first in steps.survivors else "goes")
    assert f"{float(steps.relevance[first]):.3f}" in relevance.token
    assert order.token.startswith("is choice 1;")
    assert fusion.token.startswith("is kept" if first in steps.kept else "is dropped: the greedy chose it")
    never = next(token for token in range(40) if token not in steps.order)
    said = describe_steps(steps, never)
    assert f"is not among the first {len(steps.order)} choices" in said[3].token
    assert min(steps.order) >= 0
    assert said[4].token == "is dropped: the greedy did not choose it in time."


def test_every_token_gets_a_true_word(image):
    steps = compute_steps(*image, Script(keep=9))
    for token in range(40):
        assert describe_steps(steps, token)[4].token.startswith("is kept") == (token in steps.kept)


def test_sections_are_those_of_the_docs(image):
    from pathlib import Path

    text = (Path(__file__).parents[2] / "docs" / "method.md").read_text(encoding="utf-8")
    for step in describe_steps(compute_steps(*image, Script(keep=9)), 0):
        assert f"\n## {step.section}\n" in text


def test_sides_of_a_random_graph():
    assert all(not meets(8, token, "random")[token] for token in range(8))
    assert int(meets(8, 0, "random").sum()) == 4
    assert all(meets(8, a, "random")[b] == meets(8, b, "random")[a] for a in range(8) for b in range(8))


def test_the_script_that_is_explained():
    assert explained_script(Script(keep=0.5, tau=0.2), 12) == Script(keep=12, tau=0.2)
    assert explained_script(ScriptPlus(keep=9, fusion="filter", tau=0.4), 9) == Script(keep=9, fusion="filter", tau=0.4)
    assert explained_script(ScriptPlus(keep=9, fusion="filter", tau="otsu"), 9) == Script(keep=9)

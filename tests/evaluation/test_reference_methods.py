"""The oracle and random tokens choose for each question, whatever the batch."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.evaluation_runs import answer_and_kept
from vlprune.evaluation.reference_methods import GraphAndRandom, Oracle, evidence_tokens, oracle_order
from vlprune.methods import GraphOnly, Random
from vlprune.pocket.render import PALETTE
from vlprune.pocket.world import COLORS
from vlprune.selection import graph_keep, graph_scores
from vlprune.types import TokenView


def test_random_draws_belong_to_the_question_and_not_to_the_batch(loaded, questions):
    some = questions[:6]
    single = answer_and_kept(loaded, some, {"random": Random(keep=5)}, batch=1)
    assert answer_and_kept(loaded, some, {"random": Random(keep=5)}, batch=4) == single
    kept = [tuple(kept) for _, kept in single.values()]
    assert len(set(kept)) == len(kept)
    other = answer_and_kept(loaded, some, {"random": Random(keep=5)}, batch=4, seed=1)
    assert all(other[key][1] != single[key][1] for key in single)


def test_random_tokens_beside_the_graph(loaded, questions):
    """From the graph's own tokens to `Random`'s, drawn for each question whatever the batch."""
    some, methods = questions[:4], {share: GraphAndRandom(keep=12, share=share) for share in (0.0, 0.25, 1.0)}
    methods |= {"graph": GraphOnly(keep=12), "random": Random(keep=12)}
    found = answer_and_kept(loaded, some, methods, batch=4)
    assert answer_and_kept(loaded, some, methods, batch=1) == found
    for question in some:
        kept = {name: set(found[name, question.number][1]) for name in methods}
        assert kept[0.0] == kept["graph"]
        assert kept[1.0] == kept["random"]
        assert 9 <= len(kept[0.25] & kept["graph"]) < len(kept[0.25]) == 12


@pytest.mark.parametrize(("among", "pool"), [(0.25, 25), (0.5, 50), (0.05, 8)])
def test_random_tokens_of_the_least_redundant_ones(among, pool):
    view = TokenView(torch.randn(4, 100, 6, generator=torch.Generator().manual_seed(0)), (10, 10))
    method = GraphAndRandom(keep=8, share=1.0, among=among, seeds=(3, 5))  # two images in each row
    allowed = graph_keep(graph_scores(view.features), pool)
    kept = method.select(view, None).kept
    assert kept.shape == (4, 8)
    assert all(set(some) <= set(all_) for some, all_ in zip(kept.tolist(), allowed.tolist()))
    assert pool == 8 or not torch.equal(kept, graph_keep(graph_scores(view.features), 8))
    with pytest.raises(ValueError, match="cannot be told apart"):
        replace(method, seeds=(1, 2, 3)).select(view, None)


def test_the_oracle_keeps_what_is_asked_about(loaded, questions):
    found = answer_and_kept(loaded, questions, {"oracle": Oracle(keep=40)}, batch=4)
    for question in questions:
        kept, things = set(found["oracle", question.number][1]), evidence_tokens(question)
        assert len(kept) == 40
        assert all(kept & set(thing.tolist()) for thing in things)
        wanted = set().union(*(thing.tolist() for thing in things)) if things else set()
        assert wanted <= kept or kept <= wanted


def test_evidence_lies_on_the_drawn_things(questions):
    """Checked by the pictures: the middles of these tokens have the thing's colour or a digit's, other tokens' not."""
    on, off = [], []
    for question in questions:
        pixels = np.asarray(question.image(), dtype=float) / 255
        middles = pixels.reshape(24, 8, 24, 8, 3)[:, 2:6, :, 2:6].transpose(0, 2, 1, 3, 4).reshape(576, 16, 3)
        ink = np.minimum(np.abs(middles - 0.97).max(2), np.abs(middles - 0.04).max(2)) < 0.15
        for i, tokens in zip(question.about, evidence_tokens(question)):
            color = np.array(PALETTE[COLORS.index(question.scene.things[i].color)])
            painted = ((np.abs(middles - color).max(2) < 0.12) | ink).mean(1)
            alike = [
                j for j, thing in enumerate(question.scene.things) if thing.color == question.scene.things[i].color
            ]
            others = set(range(576)) - {
                t for j in alike for t in evidence_tokens(replace(question, about=(j,)))[0].tolist()
            }
            assert len(tokens) > 0
            on.append(painted[tokens.numpy()].mean())
            off.append(painted[sorted(others)].mean())
    assert min(on) > 0.5
    assert max(off) < 0.15
    assert all(sorted(oracle_order(question)) == list(range(576)) for question in questions)

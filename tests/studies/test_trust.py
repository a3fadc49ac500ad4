"""The study of trust: evidence from the maps alone, the setting that follows, and the answers that check it."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.evaluation_runs import read_lines, write_questions
from tests.support.printed_tables import WIDTHS, check_nothing_is_cut, noted_tables
from vlprune import ScriptPlus
from vlprune.cli.options import parse_methods
from vlprune.evaluation.stats import mcnemar
from vlprune.selection import relevance_evidence
from vlprune.studies.trust import EvidenceProbe, summarize
from vlprune.types import Query, TokenView


def run_study(program, *words):
    """The data of a run of the study, and the tables that it printed."""
    with noted_tables() as tables:
        code, _, err = program("study", "trust", *words, "--out", "run")
    assert code == 0, err
    return json.loads(Path("run/result.json").read_text())["data"], tables


@pytest.mark.parametrize("sign", [1, -1])
def test_the_probe_gives_each_image_s_evidence(sign):
    g = torch.Generator().manual_seed(0)
    tokens, text = torch.randn(2, 36, 8, generator=g), torch.randn(2, 1, 8, generator=g)
    view, query = TokenView(tokens, (6, 6)), Query(tokens, text, sign, "llm", ("?", "?"))
    found = EvidenceProbe(keep=1).select(view, query)
    wanted = relevance_evidence(ScriptPlus().relevance_scores(view, query), tokens, grid=(6, 6))
    assert found.kept.tolist() == [[0], [0]]
    assert torch.equal(found.scores, wanted[:, None].expand(2, 36))
    turned = EvidenceProbe(keep=1).select(view, replace(query, sign=-sign))
    torch.testing.assert_close(turned.scores, -found.scores, rtol=1e-4, atol=1e-4)


def test_trust_is_that_of_the_mean():
    """Not the mean of each map's own trust, which would be 0.5."""
    evidence, images = [1.0, -1.0, 0.5, 0.1], ["a", "b", "c", "c"]
    found = summarize(evidence, images)
    assert found["mean"] == pytest.approx(0.15)
    assert found["trust"] == 0.25
    assert found["deviation"] == pytest.approx(np.std(evidence, ddof=1))
    assert -1 <= found["interval"][0] < 0.15 < found["interval"][1] <= 1
    alone = summarize([0.25], ["a"])
    assert (alone["trust"], alone["interval"], alone["deviation"]) == (0.75, None, None)


def test_the_pocket_model_s_clip_is_trusted_with_its_own_sign(program):
    """And what is printed is what was asked, and fits into the terminal."""
    data, tables = run_study(program, "--questions", 3)
    trust = data["trust"]
    assert trust["clip +1"]["trust"] > trust["clip -1"]["trust"] == 0
    for source in ("clip", "llm"):
        own, turned = trust[f"{source} +1"], trust[f"{source} -1"]
        assert own["mean"] == -turned["mean"]
        assert own["deviation"] == pytest.approx(turned["deviation"])
        assert own["interval"][0] < own["mean"] < own["interval"][1]
    for one in trust.values():
        ((_, by_keep),) = parse_methods(one["setting"], ["64"]).items()
        assert by_keep["64"] == ScriptPlus(keep=64, relevance=one["source"], sign=one["sign"], trust=one["trust"])
    for table in tables:
        for width in WIDTHS:
            check_nothing_is_cut(table, width)


@pytest.mark.parametrize("trust", [0.0, 0.4, 1.0])
def test_only_what_is_in_between_is_asked_again(program, monkeypatch, trust):
    monkeypatch.setattr("vlprune.studies.trust.evidence_trust", lambda mean: torch.tensor(trust))
    data, _ = run_study(program, "--questions", 1, "--keep", 4)
    cells = {path.stem for path in Path("run/answers").iterdir()}
    assert ("clip_+1__trusted@4" in cells) == (trust == 0.4)
    assert len(cells) == 2 + 1 + 4 + 4 * (trust == 0.4)
    scores, same = data["scores"]["4"], {0.0: "none, not at all", 1.0: "clip +1, fully"}.get(trust, "clip +1, trusted")
    right = {name: [line["right"] for line in read_lines("run", f"{name}@4")] for name in (same, "none, not at all")}
    found = scores["clip +1, trusted"]
    assert found["right"] == sum(right[same])
    assert scores[found["against"]]["right"] == max(
        scores[name]["right"] for name in ("clip +1, fully", "none, not at all")
    )
    better = [line["right"] for line in read_lines("run", f"{found['against']}@4")]
    assert (found["lost"], found["won"], found["p"]) == mcnemar(better, right[same])


def test_a_model_without_a_dual_encoder_has_one_source(program, tmp_path, checkpoint):
    data, _ = run_study(program, "--model", checkpoint, "--data", write_questions(tmp_path), "--keep", 4)
    assert list(data["trust"]) == ["llm +1", "llm -1"]


def test_questions_without_answers_are_measured_alone(program, monkeypatch):
    from vlprune.cli.runs import RunOptions

    drawn = RunOptions.read_questions
    monkeypatch.setattr("vlprune.evaluation.questions.longest_answer", lambda *given: 1)
    monkeypatch.setattr(
        RunOptions, "read_questions", lambda *given: [replace(question, answers=()) for question in drawn(*given)]
    )
    data, tables = run_study(program, "--questions", 1)
    assert data["scores"] == {}
    assert len(tables) == 1

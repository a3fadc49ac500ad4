"""The benchmark that splits a call's time into parts, on a small model."""

from argparse import Namespace

import pytest

from tests.support.scripts import ROOT, load_script
from vlprune import Script, attach


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # where its neighbours lie
    return load_script("benchmarks/first_token.py")


def test_parts_make_up_the_whole(script):
    subject, inputs, _ = script.load("thin", "cpu")
    model, keep = subject.model, subject.keep
    plain = script.time_calls(model, inputs, 2)
    with attach(model, Script(keep=keep, relevance="llm"), cache_bytes=0) as pruner:
        pruned = script.time_calls(model, inputs, 2)
        assert pruner.last.after == keep
    for calls, own in ((plain, {"merge", "question", "selection"}), (pruned, set())):
        assert len(calls) == 2
        for parts, total in calls:
            assert set(parts) == set(script.PARTS.values()) - own
            assert sum(host for host, _ in parts.values()) == pytest.approx(total)
    parts, total = script.medians(plain)
    assert parts["selection"] == (0, 0)
    assert min(total for _, total in plain) <= total <= max(total for _, total in plain)


def test_rounds_tell_how_even_the_host_is(script):
    args = Namespace(device="cpu", keep=None, ways=["eager"], rounds=3, repeats=1)
    rows = script.measure_model("thin", args, (1e10, 1e10))["rows"]
    assert [row["method"] for row in rows] == ["all tokens", "script", "script_plus"]
    assert rows[0]["faster_by_round"] == [1.0] * 3
    for row in rows[1:]:
        assert len(row["faster_by_round"]) == 3
        assert all(faster > 0 for faster in row["faster_by_round"])


def test_budgets_are_measured_against_one_whole_model(script):
    args = Namespace(device="cpu", keep=[16, 0.5], ways=["eager"], rounds=1, repeats=1)
    rows = script.measure_model("thin", args, (1e10, 1e10))["rows"]
    titles = ["all tokens", "script 16", "script_plus 16", "script 0.5", "script_plus 0.5"]
    assert [row["method"] for row in rows] == titles
    assert [row["keep"] for row in rows] == ["None", "16", "16", "0.5", "0.5"]
    floors = [row["prefill_floor"] for row in rows]
    assert floors[0] > floors[3] > floors[1] > 0

"""The benchmark of selection: what it prints beside its times."""

import pytest

from tests.support.scripts import ROOT, load_script


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # where its neighbours lie
    return load_script("benchmarks/selection.py")


def test_it_says_how_many_choices_were_made_and_which_were_the_same(script, monkeypatch, capsys):
    monkeypatch.setattr(script, "CPU_CASES", ((2, 60, 16, 12),))
    released, supplement = script.measure_table("cpu", 1)
    assert released["choices"] == 12 < supplement["choices"] <= 24
    assert released["same"] == supplement["same"] == 1
    head, _, *rows = capsys.readouterr().out.splitlines()
    column = [cell.strip() for cell in head.split("|")].index("choices")
    assert [int(row.split("|")[column]) for row in rows] == [released["choices"], supplement["choices"]]
    assert {row.count("|") for row in rows} == {head.count("|")}

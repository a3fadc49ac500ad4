"""The benchmark of batches, on small models; what it times is not looked at."""

import json
import sys
from types import SimpleNamespace

import pytest
import torch

from tests.support.narrow_architectures import narrow_architectures
from tests.support.scripts import ROOT, load_script
from vlprune.measure import kv_cache_bytes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
METHODS = ["all tokens", "script", "script_plus"]
SHORT = ["--device", DEVICE, "--ways", "eager", "--rounds", "1", "--repeats", "1", "--new", "2"]


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # where its neighbours lie
    return load_script("benchmarks/throughput.py")


@pytest.fixture
def run(script, monkeypatch, tmp_path, capsys):
    """Its tables, lists of cells, and the figures it wrote."""

    def run(*words):
        path = tmp_path / "figures.json"
        monkeypatch.setattr(sys, "argv", ["throughput.py", *SHORT, "--out", str(path), *words])
        script.main()
        said = capsys.readouterr().out
        rows = [line.strip("| ").split(" | ") for line in said.splitlines() if line.startswith("| ")]
        return said, rows, json.loads(path.read_text())

    return run


def test_batches(run):
    said, table, found = run("--models", "thin", "--batches", "1", "2", "--images", "2", "--limits", "1")
    assert [(row["batch"], row["method"]) for row in found["throughput"]] == [(b, m) for b in (1, 2) for m in METHODS]
    assert len(table[0]) == len(table[2])
    assert [row[2] for row in table[2:8]] == METHODS * 2
    for row in found["throughput"]:
        assert row["images_per_second"] == pytest.approx(2 * row["prompts_per_second"])
        assert len(row["seconds"]) == 1
    one, *_, pruned = (row["kv_bytes"] for row in found["throughput"] if row["batch"] == 2)
    values = 2 * 32 * 32 * 4  # keys and values of a token: layers, width, bytes
    assert one - pruned == 2 * 2 * (64 - 16) * values  # two rows of two images
    assert found["failures"] == []
    assert len(found["fit"]) == (3 if DEVICE == "cuda" else 0)
    assert ("a GPU only" in said) == (DEVICE == "cpu")


def test_decoding(run):
    _, table, found = run("--models", "thin", "--decode")
    assert [row[3] for row in table[2:]] == [row["method"] for row in found["decode"]] == METHODS
    assert found["decode"][0]["prompt"] == "8 x one image of 112x112"
    assert found["decode"][0]["kv_bytes"] - found["decode"][1]["kv_bytes"] == 8 * (64 - 16) * 2 * 32 * 32 * 4
    with pytest.raises(SystemExit):
        run("--models", "thin", "--decode", "--new", "1")


def test_a_text_tower_is_attached(run):
    with narrow_architectures():
        _, _, found = run("--models", "llava-1.5-7b", "--batches", "2", "--limits")
    assert [row["method"] for row in found["throughput"]] == METHODS


def test_prompts_are_padded_on_the_left(script):
    subject = script.load_subject("thin", DEVICE)
    inputs = subject.prompts([5, 9], images=2)
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    assert mask.sum(1).tolist() == [5 + 128, 9 + 128]
    assert mask[:, -1].all()
    assert (ids[mask == 0] == 0).all()
    assert ((ids == 4).sum(1) == 128).all()
    assert inputs["pixel_values"].unique(dim=0).shape == (4, 3, 112, 112)
    output = subject.model.generate(**inputs, max_new_tokens=3, min_new_tokens=3, return_dict_in_generate=True)
    assert script.count_kv_bytes(subject.model, inputs, 3) == kv_cache_bytes(output.past_key_values)
    lengths = script.mixed_lengths(8)
    assert (lengths[0], lengths[-1], sum(lengths) / 8) == (16, 112, 64)


def test_what_does_not_fit_is_left_out(script, run, monkeypatch):
    """The whole model, in the second round."""
    calls = []

    def turn(model, inputs, new, pruner=None):
        calls.append(pruner)
        if pruner is None and len(calls) > 1:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return 1.0

    monkeypatch.setattr(script, "time_generate", turn)
    said, _, found = run("--models", "thin", "--batches", "1", "--limits", "--rounds", "3")
    assert [(row["method"], row["ratio"], len(row["seconds"])) for row in found["throughput"]] == [
        ("script", None, 3),
        ("script_plus", None, 3),
    ]
    assert "Did not run: thin, eager, batch 1, all tokens: out of memory." in said


def test_the_largest_batch(script, monkeypatch):
    """Peaks of a machine that does not have to be there: 10 GiB, and 1 GiB for each prompt."""
    assert script.largest_batch({16: 26, 32: 42}, 50) == (40, 1)
    assert script.largest_batch({16: 26, 32: 42}, 5)[0] == 0
    with pytest.raises(ValueError, match="does not grow"):
        script.largest_batch({16: 26, 32: 26}, 50)

    def peak(subject, method, batch, new):
        if batch > 20:
            raise torch.OutOfMemoryError
        return (10 + batch) * script.GIB, script.GIB / 2

    def limited(subject, method, batch, limit, new):
        if batch > 0.96 * (limit / script.GIB - 10):  # memory falls to pieces
            raise torch.OutOfMemoryError
        return batch

    monkeypatch.setattr(script, "measure_peak", peak)
    monkeypatch.setattr(script, "try_batch", limited)
    monkeypatch.setattr(script, "device_bytes", lambda: 80 * script.GIB)
    model = torch.nn.Linear(1, script.GIB, bias=False, device="meta")  # 4 GiB
    subject = SimpleNamespace(name="thin", model=model, methods={"all tokens": None}, text_tower=None)
    attempts = script.Attempts()
    rows = script.measure_fit(subject, SimpleNamespace(limits=[24, 50, 139], new=2), attempts)
    assert [(row["computed_batch"], row["batch_that_ran"], row["caches_beside_weights"]) for row in rows] == [
        (14, 13, 40),
        (40, 38, 92),
        (129, None, 270),
    ]
    assert rows[0]["peak_bytes"] == {8: 18 * script.GIB, 16: 26 * script.GIB}
    assert attempts.failures == ["thin, largest batch, all tokens, peak at 32 prompts: out of memory"]

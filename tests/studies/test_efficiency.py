"""The paper's efficiency table, on a LLaVA-1.5 and a LLaVA-NeXT that are small in width and depth."""

import io
import json

import pytest
from rich.console import Console

from tests.support.narrow_architectures import LAYERS, narrow_architectures
from vlprune.errors import UserError
from vlprune.measure import LLMShape, kv_bytes, llm_flops, paper_macs
from vlprune.measure import architectures as built
from vlprune.measure.efficiency_report import EfficiencyReport, Row, Spread
from vlprune.studies.efficiency import (
    TILES,
    TITLES,
    Accuracy,
    PaperEfficiency,
    count_calls,
    measure_paper_table,
    paper_methods,
    read_accuracy,
)
from vlprune.studies.paper import table


@pytest.fixture(scope="module")
def small():
    with narrow_architectures():
        yield


@pytest.fixture(scope="module")
def measured(small):
    ticks = []
    found = measure_paper_table(
        "llava-1.5-7b", device="cpu", text=4, new_tokens=2, repeats=1, warmup=0, tick=lambda: ticks.append(1)
    )
    return found, ticks


def test_rows_and_their_tokens(measured, small):
    found, ticks = measured
    by_name = {row.method: row for row in found.report.rows}
    assert list(by_name) == [*table("efficiency").rows, "script_plus"]
    assert by_name["all tokens"].layer_average == 576
    for name in ("fastv", "pyramiddrop", "sparsevlm"):
        assert by_name[name].visual_tokens == 576
        assert by_name[name].layer_average == pytest.approx(64, abs=1)
    for name in ("visionzip", "divprune", "script", "script without DPP", "script_plus"):
        assert by_name[name].visual_tokens == by_name[name].layer_average == 64
    assert len(ticks) == count_calls("llava-1.5-7b", 1) - 2 * len(by_name)  # without the warm-up


def test_operations_and_bytes(measured, small):
    found, _ = measured
    shape = LLMShape.of(built.get_architecture("llava-1.5-7b").config())
    by_name = {row.method: row for row in found.report.rows}
    assert by_name["script"].macs == paper_macs(shape, 64)
    assert by_name["script"].kv_bytes == kv_bytes(shape, 64 + 4 + 1, dtype=built.torch.bfloat16)
    (cut,) = paper_methods("llava-1.5-7b", LAYERS)["fastv"].layer_budgets(576, LAYERS)
    lengths = [576] * cut.layer + [cut.keep] * (LAYERS - cut.layer)
    assert by_name["fastv"].macs == paper_macs(shape, lengths)
    assert by_name["fastv"].flops == llm_flops(shape, [length + 4 for length in lengths]).prefill


def test_choosing_counts_the_text_tower(measured):
    found, _ = measured
    by_name = {row.method: row for row in found.report.rows}
    assert by_name["script"].question.median > 0
    assert by_name["script without DPP"].question.median > 0
    assert found.to_json()["memory_bytes"]["script"] is None  # a CPU's is not measured


def test_a_tiled_model_keeps_its_share_of_each_tile(small):
    from vlprune import attach

    one = built.get_architecture("llava-next-7b")
    model = one.build("cpu")
    methods = paper_methods("llava-next-7b", LAYERS)
    assert methods["fastv"].accounting(2880, LAYERS).layer_average == pytest.approx(320, abs=1)
    with attach(model, methods["script"], query="a cat?", dual_encoder=built.build_text_tower(model)) as pruner:
        model.generate(**one.inputs(model, 4), max_new_tokens=1, do_sample=False)
    (record,) = pruner.records
    assert (record.before, record.after, record.source) == (2880, 320, "clip")
    kept = set(record.kept.tolist())
    assert [len(kept & set(part.tokens.tolist())) for part in record.parts] == [64] * 5


def test_budgets_fit_every_model():
    for name in TILES:
        config = built.get_architecture(name).config()
        layers, tokens = LLMShape.of(config).layers, 576 * TILES[name]
        for method in ("fastv", "pyramiddrop", "sparsevlm"):
            average = paper_methods(name, layers)[method].accounting(tokens, layers).layer_average
            assert average == pytest.approx(tokens / 9, rel=0.02)


def made(method, seconds, macs, graphs=False):
    at = Spread(seconds, seconds, seconds)
    tokens = {"visual_tokens": 2928, "prompt_tokens": 2992, "flops": macs, "macs": macs, "layer_average": 2928.0}
    times = dict.fromkeys(("vision", "question", "selection", "prefill", "first", "decode"), at)
    return Row(method=method, cuda_graphs=graphs, **tokens, **times, kv_bytes=1497 * 2**20, peak_bytes=2 * 10**9)


NO_ACCURACY = Accuracy({}, "")
ABOUT = dict.fromkeys(("model", "device", "dtype", "batch", "new_tokens", "repeats", "torch", "transformers"), "x")


def full_table(name="llava-next-7b", accuracy=NO_ACCURACY):
    rows = [made("all tokens", 0.03, 21 * 10**12, True), made("pyramiddrop", 0.0123, 2 * 10**12)]
    rows += [made("script", 0.004, 2 * 10**12, True), made("script without DPP", 0.003, 2 * 10**12, True)]
    memory = {row.method: 17 * 10**9 for row in rows}
    return PaperEfficiency(name, EfficiencyReport(rows, ABOUT), memory, accuracy, (2, 6, 15))


def test_the_paper_stands_below():
    cells = full_table().cells()
    assert cells[0][:4] == ["all tokens\n  paper", "42.0\n41.7", "90.0\n246", "30.0\n29"]
    assert cells[1][0] == "pyramiddrop*\n  paper"
    assert "*: ran eager" in full_table().caption
    assert cells[2][1:6] == ["4.0 (10.5×)\n4.1 (10.0×)", "12.0 (7.5×)\n35 (6.8×)", "4\n22", "1,497\n160", "17.0\n13.5"]
    assert cells[2][6] == "-\n86.7"
    assert full_table().to_json()["paper"]["script"]["f1"] == 86.7


def test_a_model_that_the_paper_does_not_time():
    found = full_table("llava-next-13b")
    assert found.to_json()["paper"] == {}
    assert "paper:" not in found.caption
    assert not any("\n" in cell for row in found.cells() for cell in row)


def test_accuracy_comes_from_a_run(tmp_path):
    asked = {"asked": {"digit": 40, "word": 20}}
    scores = {
        "all tokens": {"accuracy": 0.9, "layer_average": 2880.0, **asked},
        "script@64/tile": {"accuracy": 0.875, "layer_average": 320.0, **asked},
        "script@160": {"accuracy": 0.5, "layer_average": 160.0, **asked},
        "fastv@320/layer": {"accuracy": 0.25, "layer_average": 320.4, **asked},
    }
    (tmp_path / "manifest.json").write_text(json.dumps({"settings": {"model": "my-next"}}))
    with pytest.raises(UserError, match="holds no finished run"):
        read_accuracy(tmp_path, "llava-next-7b")
    (tmp_path / "result.json").write_text(json.dumps({"data": {"scores": scores}}))
    found = read_accuracy(tmp_path, "llava-next-7b")
    assert found.shares == {"all tokens": 0.9, "script": 0.875, "fastv": 0.25}
    assert found.source == f"{tmp_path}: my-next, 60 questions"
    shown = full_table(accuracy=found)
    assert shown.cells()[2][6] == "87.5\n86.7"
    assert "my-next, 60 questions" in shown.to_markdown()


@pytest.mark.parametrize("width", [80, 140])
def test_it_fits_the_terminal(width):
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(full_table().to_table())
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= width
    assert text.count("┏") == 1  # one block: nothing that matters goes below
    assert all(word in text for title in TITLES[:7] for word in title.split())


def test_wrong_input():
    with pytest.raises(ValueError, match=r"name='pocket': choose from llava-1\.5-7b"):
        paper_methods("pocket", 32)

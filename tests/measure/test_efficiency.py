"""The efficiency table: right numbers in the right places, for every way to run."""

import functools
import json
import math
import time

import pytest

from vlprune import Budget, Random, Script, get_method
from vlprune.cli import app as cli
from vlprune.cuda_graphs.capture import direct
from vlprune.cuda_graphs.graphed import GraphedModel
from vlprune.measure import kv_bytes, llm_flops, paper_macs
from vlprune.measure.efficiency import Report, Row, Spread, bench, calls

NEW = 4


@pytest.fixture
def report(model, inputs):
    return bench(model, inputs, [Script(keep=4), Random(keep=0.5)], new_tokens=NEW, repeats=3, warmup=1, name="tiny")


def test_tokens_operations_and_bytes(model, report):
    assert [row.method for row in report.rows] == ["all tokens", "script, keep=4", "random, keep=0.5"]
    assert [row.visual_tokens for row in report.rows] == [16, 4, 8]
    for row in report.rows:
        assert row.prompt_tokens == row.visual_tokens + 4
        assert row.flops == llm_flops(model, row.prompt_tokens).prefill
        assert row.macs == paper_macs(model, row.visual_tokens)
        assert row.kv_bytes == kv_bytes(model, row.prompt_tokens + NEW - 1)
        assert (row.peak_bytes is None) == (model.device.type == "cpu")


def test_times(report):
    whole, *pruned = report.rows
    assert whole.selection == Spread(0.0, 0.0, 0.0)
    for row in report.rows:
        for spread in (row.vision, row.prefill, row.first, row.decode):
            assert 0 < spread.low <= spread.median <= spread.high
        assert row.first.median >= row.prefill.low + row.vision.low
    assert all(row.selection.median > 0 for row in pruned)


def test_the_first_token_waits_for_all_before_it(model, inputs):
    class Slow(Random):
        def select(self, view, query):
            time.sleep(0.05)
            return super().select(view, query)

    def sleep(*_):
        time.sleep(0.05)

    handles = [model.base_model.vision_tower.register_forward_hook(sleep), model.register_forward_pre_hook(sleep)]
    whole, row = bench(model, inputs, [Slow(keep=4)], new_tokens=2, repeats=1, warmup=0).rows
    for handle in handles:
        handle.remove()
    assert whole.first.low >= 0.1
    assert row.first.low >= 0.15


def test_a_batch(model, inputs):
    pair = {name: value.repeat_interleave(2, dim=0) for name, value in inputs.items()}
    whole, pruned = bench(model, pair, [Random(keep=4)], new_tokens=1, repeats=1, warmup=0).rows
    assert (whole.visual_tokens, pruned.visual_tokens) == (32, 8)
    assert pruned.macs == 2 * paper_macs(model, 4)
    assert whole.decode is None


def test_tokens_that_are_dropped_inside_the_llm(model, inputs):
    _, row = bench(model, inputs, [get_method("fastv", keep=4, layer=1)], new_tokens=2, repeats=1, warmup=0).rows
    assert (row.visual_tokens, row.prompt_tokens) == (16, 20)
    assert row.flops is row.macs is None
    assert row.kv_bytes < kv_bytes(model, 21)


def test_an_unknown_decoder_has_no_operations(model, inputs):
    model.config.text_config.model_type = "unheard_of"
    report = bench(model, inputs, [], new_tokens=1, repeats=1, warmup=0)
    assert report.rows[0].flops is report.rows[0].macs is None
    assert "FLOPs" not in report.to_markdown().partition("Medians")[0]


def test_one_tick_a_call(model, inputs):
    ticks = []
    methods = [Random(keep=4), Random(keep=8)]
    bench(model, inputs, methods, new_tokens=1, repeats=2, warmup=1, tick=lambda: ticks.append(1))
    assert len(ticks) == calls(methods, 2, 1)


def test_graphs_are_named_where_they_ran(model, inputs, monkeypatch):
    if model.device.type == "cpu":
        monkeypatch.setattr("vlprune.cuda_graphs.graphed.GraphedModel", functools.partial(GraphedModel, capture=direct))
    ran = bench(model, inputs, [Random(keep=4)], cuda_graphs=True, new_tokens=2, repeats=1, warmup=1)
    assert [row.cuda_graphs for row in ran.rows] == [True, True]
    assert "CUDA graphs" in ran.title
    assert "generate" not in model.__dict__


def test_graphs_are_not_named_where_they_did_not(model, inputs):
    if model.device.type == "cuda":
        pytest.skip("there they do")
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        report = bench(model, inputs, [], cuda_graphs=True, new_tokens=1, repeats=1, warmup=0)
    assert report.rows[0].cuda_graphs is False
    assert "eager" in report.title


@pytest.mark.parametrize("wrong", [{"new_tokens": 0}, {"repeats": 0}, {"warmup": -1}])
def test_wrong_input(model, inputs, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        bench(model, inputs, [], **wrong)


def made(method, seconds, selection=0.0):
    spread = Spread(seconds, seconds, seconds)
    chosen, first = Spread(selection, selection, selection), seconds + selection
    return Row(
        method,
        False,
        576,
        640,
        10**12,
        2 * 10**12,
        spread,
        chosen,
        chosen,
        spread,
        Spread(first, first, first),
        None,
        2**25,
        None,
    )


def test_the_ratio_is_that_of_the_first_token():
    about = dict.fromkeys(("model", "device", "dtype", "batch", "new_tokens", "repeats", "torch", "transformers"), "x")
    report = Report([made("all tokens", 0.09), made("script", 0.02, 0.01)], about)
    titles, *rows = report.cells()
    whole, pruned = (dict(zip(titles, cells)) for cells in rows)
    assert (whole["first token faster"], pruned["first token faster"]) == ("", "3.00×")
    assert pruned["first token ms"].startswith("30.0")
    assert (whole["selection ms"], pruned["selection ms"]) == ("", "10.0\n10.0–10.0")
    assert (whole["MACs (paper)"], whole["FLOPs (prefill)"], whole["KV MiB"]) == ("2 T", "1 T", "32")
    assert "peak MiB" not in titles  # nobody knows it
    table = [line for line in report.to_markdown().splitlines() if line.startswith("|")]
    assert len(table) == 4
    assert len({line.count("|") for line in table}) == 1


def test_spread():
    spread = Spread.of([float(i) for i in range(1, 102)])
    assert (spread.low, spread.median, spread.high) == (26, 51, 76)
    assert math.isclose(Spread.of([1.0, 2.0]).median, 1.5)


def test_the_command(tmp_path, capsys):
    figures, table = tmp_path / "bench.json", tmp_path / "bench.md"
    command = [
        "bench",
        "--methods",
        "script,random",
        "--keep",
        "64,0.5",
        "--repeats",
        "2",
        "--new",
        "2",
        "--device",
        "cpu",
    ]
    with pytest.raises(SystemExit) as stop:
        cli.main([*command, "--json", str(figures), "--markdown", str(table)])
    assert stop.value.code == 0
    found = json.loads(figures.read_text())
    assert [row["visual_tokens"] for row in found["rows"]] == [576, 64, 288, 64, 288]
    assert {"device", "torch", "transformers", "vlprune", "conventions", "repeats"} <= set(found)
    assert "script, keep=64" in table.read_text()
    assert "random, keep=0.5" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--methods", "scrip"], "did you mean 'script'"),
        (["--methods", ","], "name at least one"),
        (["--keep", "0"], "at least one token"),
        (["--keep", "600", "--repeats", "1", "--device", "cpu"], "only 576 visual tokens"),
        (["--per-frame", "4", "--repeats", "1", "--device", "cpu"], "per_tile"),
        (["--random-weights", "--model", "llava-7b"], "did you mean 'llava-1.5-7b'"),
        (["--json", "/no/such/folder/x.json"], "there is no folder"),
    ],
)
def test_refusals(options, said, capsys):
    with pytest.raises(SystemExit) as stop:
        cli.main(["bench", *options])
    assert stop.value.code == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_budgets_per_part():
    from vlprune.cli.bench import _methods

    methods = _methods("script, random", "64", 32, None)
    assert [method.keep for method in methods] == [64, Budget(per_tile=32)] * 2
    assert [method.keep for method in _methods("script", None, None, None)] == [get_method("script").keep]

"""The efficiency table: right numbers in the right places, for every way to run."""

import functools
import time

import pytest

from vlprune import Random, Script, get_method
from vlprune.cuda_graphs.capture import no_capture
from vlprune.cuda_graphs.graphed_model import GraphedModel
from vlprune.measure import kv_bytes, llm_flops, paper_macs
from vlprune.measure.efficiency import count_generate_calls, measure_efficiency
from vlprune.measure.efficiency_report import Spread

NEW = 4


@pytest.fixture
def report(model, inputs):
    return measure_efficiency(
        model, inputs, [Script(keep=4), Random(keep=0.5)], new_tokens=NEW, repeats=3, warmup=1, name="tiny"
    )


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
    whole, row = measure_efficiency(model, inputs, [Slow(keep=4)], new_tokens=2, repeats=1, warmup=0).rows
    for handle in handles:
        handle.remove()
    assert whole.first.low >= 0.1
    assert row.first.low >= 0.15


def test_a_batch(model, inputs):
    pair = {name: value.repeat_interleave(2, dim=0) for name, value in inputs.items()}
    whole, pruned = measure_efficiency(model, pair, [Random(keep=4)], new_tokens=1, repeats=1, warmup=0).rows
    assert (whole.visual_tokens, pruned.visual_tokens) == (32, 8)
    assert pruned.macs == 2 * paper_macs(model, 4)
    assert whole.decode is None


def test_tokens_that_are_dropped_inside_the_llm(model, inputs):
    _, row = measure_efficiency(
        model, inputs, [get_method("fastv", keep=4, layer=1)], new_tokens=2, repeats=1, warmup=0
    ).rows
    assert (row.visual_tokens, row.prompt_tokens) == (16, 20)
    assert row.flops == llm_flops(model, [20, 8, 8]).prefill
    assert row.macs == paper_macs(model, [16, 4, 4])
    assert row.layer_average == 8
    assert row.kv_bytes < kv_bytes(model, 21)


def test_a_batch_that_loses_tokens_inside_the_llm_has_no_formula(model, inputs):
    pair = {name: value.repeat_interleave(2, dim=0) for name, value in inputs.items()}
    fastv = get_method("fastv", keep=4, layer=1)
    _, row = measure_efficiency(model, pair, [fastv], new_tokens=1, repeats=1, warmup=0).rows
    assert row.flops is row.macs is row.layer_average is None


def test_an_unknown_decoder_has_no_operations(model, inputs):
    model.config.text_config.model_type = "unheard_of"
    report = measure_efficiency(model, inputs, [], new_tokens=1, repeats=1, warmup=0)
    assert report.rows[0].flops is report.rows[0].macs is None
    assert "FLOPs" not in report.to_markdown().partition("Medians")[0]


def test_one_tick_a_call(model, inputs):
    ticks = []
    methods = [Random(keep=4), Random(keep=8)]
    measure_efficiency(model, inputs, methods, new_tokens=1, repeats=2, warmup=1, tick=lambda: ticks.append(1))
    assert len(ticks) == count_generate_calls(methods, 2, 1)


def test_rows_take_turns(model, inputs):
    """So that a machine that slows down slows all of them."""
    running = []

    class Seen(Random):
        def select(self, view, query):
            running.append(self.keep)
            return super().select(view, query)

    methods = {"few": Seen(keep=4), "more": Seen(keep=8)}
    report = measure_efficiency(model, inputs, methods, new_tokens=1, repeats=4, warmup=1)
    turns = [*[4] * 6, *[8] * 6], [*[4] * 3, *[8] * 3], [*[4] * 3, *[8] * 3]  # warm-up, one look, parts, first tokens
    assert running == [*turns[0], *turns[1], *turns[2]]
    assert [row.visual_tokens for row in report.rows] == [16, 4, 8]


def test_graphs_are_named_where_they_ran(model, inputs, monkeypatch):
    if model.device.type == "cpu":
        make = functools.partial(GraphedModel, capture=no_capture)
        monkeypatch.setattr("vlprune.cuda_graphs.graphed_model.GraphedModel", make)
    ran = measure_efficiency(model, inputs, [Random(keep=4)], cuda_graphs=True, new_tokens=2, repeats=1, warmup=1)
    assert [row.cuda_graphs for row in ran.rows] == [True, True]
    assert "CUDA graphs" in ran.title
    assert "generate" not in model.__dict__


def test_graphs_are_not_named_where_they_did_not(model, inputs):
    if model.device.type == "cuda":
        pytest.skip("there they do")
    with pytest.warns(UserWarning, match="without CUDA graphs"):
        report = measure_efficiency(model, inputs, [], cuda_graphs=True, new_tokens=1, repeats=1, warmup=0)
    assert report.rows[0].cuda_graphs is False
    assert "eager" in report.title


@pytest.mark.parametrize("wrong", [{"new_tokens": 0}, {"repeats": 0}, {"warmup": -1}])
def test_wrong_input(model, inputs, wrong):
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        measure_efficiency(model, inputs, [], **wrong)

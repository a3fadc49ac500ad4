"""The clock puts the time where it was spent: each part is slowed in turn, and only that part must grow."""

import time

import pytest
import torch

from vlprune import Random, Script, attach
from vlprune.measure import Clock, Latency, measure_generate

LENGTHS = dict(max_new_tokens=4, min_new_tokens=4, do_sample=False)
PAUSE = 0.25


def slow(module, times=None):
    """Make a module take longer, at its first `times` calls."""
    left = [times]

    def pause(*args):
        if left[0] is None or left[0] > 0:
            time.sleep(PAUSE)
        if left[0] is not None:
            left[0] -= 1

    return module.register_forward_hook(pause)


def clocked(model, inputs, pruner=None):
    with Clock(model, pruner) as clock:
        model.generate(**inputs, **LENGTHS)
    return clock


@pytest.mark.parametrize("pruned", [False, True])
def test_vision(model, inputs, pruned):
    pruner = attach(model, Random(keep=4)) if pruned else None
    clocked(model, inputs, pruner)
    slow(model.model.vision_tower)
    slow(model.model.multi_modal_projector)
    if pruner is not None:
        pruner.clear_cache()
    parts = clocked(model, inputs, pruner).latency
    assert parts.vision >= 2 * PAUSE
    assert parts.prefill + parts.selection + parts.decode + parts.rest < PAUSE


@pytest.mark.parametrize("pruned", [False, True])
def test_prefill(model, inputs, pruned):
    pruner = attach(model, Random(keep=4)) if pruned else None
    clocked(model, inputs, pruner)
    slow(model.lm_head, times=1)
    slow(model.model.language_model, times=1)
    parts = clocked(model, inputs, pruner).latency
    assert parts.prefill >= 2 * PAUSE
    assert parts.vision + parts.selection + parts.decode + parts.rest < PAUSE


@pytest.mark.parametrize("pruned", [False, True])
def test_decode(model, inputs, pruned):
    pruner = attach(model, Random(keep=4)) if pruned else None
    clocked(model, inputs, pruner)
    slow(model.model.language_model)  # one prefill, three steps
    parts = clocked(model, inputs, pruner).latency
    assert 3 * PAUSE <= parts.decode < 4 * PAUSE
    assert PAUSE <= parts.prefill < 2 * PAUSE


def test_selection(model, inputs):
    class Slow(Random):
        name = "slow"

        def select(self, view, query):
            time.sleep(PAUSE)
            return super().select(view, query)

    parts = clocked(model, inputs, attach(model, Slow(keep=4))).latency
    assert PAUSE <= parts.selection < 2 * PAUSE
    assert parts.vision + parts.prefill + parts.decode + parts.rest < PAUSE


def test_the_parts_sum_to_the_whole(model, inputs):
    clocked(model, inputs)
    began = time.perf_counter()
    parts = clocked(model, inputs).latency
    assert 0 < parts.total <= time.perf_counter() - began
    assert parts.selection == 0


def test_the_prompt_that_entered_the_llm(model, inputs):
    assert clocked(model, inputs).prompt == (1, 20)
    assert clocked(model, inputs, attach(model, Script(keep=4))).prompt == (1, 8)


def test_hooks_are_gone(model, inputs):
    model.generate(**inputs, **LENGTHS)  # transformers leaves hooks of its own at the first call
    modules = list(model.modules())
    before = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in modules]
    clocked(model, inputs)
    with pytest.raises(ZeroDivisionError), Clock(model):
        raise ZeroDivisionError
    assert [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in modules] == before
    with pytest.raises(RuntimeError, match="nothing ran"), Clock(model):
        pass


def test_median():
    runs = [Latency(vision=v, decode=d) for v, d in ((1, 9), (2, 7), (30, 8))]
    assert Latency.median(runs) == Latency(vision=2, decode=8)
    with pytest.raises(ValueError, match="empty"):
        Latency.median([])


def test_measure_generate(model, inputs):
    plain = model.generate(**inputs, **LENGTHS)
    run = measure_generate(model, inputs, repeats=2, warmup=1, **LENGTHS)
    assert torch.equal(run.new, plain[:, 20:])
    assert (run.prompt_tokens, run.visual_tokens) == (20, 16)
    with attach(model, Script(keep=4)) as pruner:
        short = measure_generate(model, inputs, pruner=pruner, **LENGTHS)
    assert (short.prompt_tokens, short.visual_tokens) == (8, 4)
    assert short.flops.total < run.flops.total
    assert short.kv_bytes * 23 == run.kv_bytes * 11
    assert short.latency.selection > 0


def test_measure_generate_in_a_batch(model, inputs):
    pair = {name: torch.cat([value, value]) for name, value in inputs.items()}
    one, two = measure_generate(model, inputs, **LENGTHS), measure_generate(model, pair, **LENGTHS)
    assert two.flops.total == 2 * one.flops.total
    assert two.kv_bytes == 2 * one.kv_bytes
    assert two.visual_tokens == 32


def test_an_unknown_decoder_has_no_figure(model, inputs):
    model.config.text_config.model_type = "unheard_of"
    assert measure_generate(model, inputs, **LENGTHS).flops is None


@pytest.mark.parametrize("wrong", [dict(repeats=0), dict(warmup=-1), dict(num_beams=2)])
def test_wrong_input(model, inputs, wrong):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        measure_generate(model, inputs, **wrong)

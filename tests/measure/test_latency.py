"""The clock puts the time where it was spent. Time stands still here, but for the parts that are made to take some."""

import time
from types import SimpleNamespace

import pytest

from vlprune import Random, Script, attach
from vlprune.measure import Clock, Latency, latency

LENGTHS = dict(max_new_tokens=4, min_new_tokens=4, do_sample=False)


class Hands:
    """A watch that only `spend` moves."""

    def __init__(self):
        self.now = 0.0

    def spend(self, seconds):
        self.now += seconds

    def every_call(self, module, seconds):
        module.register_forward_hook(lambda *args: self.spend(seconds))


@pytest.fixture
def hands(monkeypatch):
    hands = Hands()
    monkeypatch.setattr(latency, "time", SimpleNamespace(perf_counter=lambda: hands.now))
    return hands


def clocked(model, inputs, pruner=None):
    with Clock(model, pruner) as clock:
        model.generate(**inputs, **LENGTHS)
    return clock


@pytest.mark.parametrize("pruned", [False, True])
def test_each_second_is_counted_where_it_was_spent(model, inputs, hands, pruned):
    pruner = attach(model, Random(keep=4)) if pruned else None
    hands.every_call(model.model.vision_tower, 1)
    hands.every_call(model.model.multi_modal_projector, 10)
    hands.every_call(model.model.language_model, 100)  # one prefill, three steps
    hands.every_call(model.lm_head, 1000)
    parts = clocked(model, inputs, pruner).latency
    assert parts.vision == 11
    assert parts.prefill == 1100
    assert parts.decode == 3300
    assert parts.total == pytest.approx(11 + 4400, abs=1)  # a pruner's own seconds are real ones
    assert (parts.selection > 0) == pruned


def test_features_from_the_cache_take_no_vision(model, inputs, hands):
    pruner = attach(model, Random(keep=4))
    hands.every_call(model.model.vision_tower, 1)
    assert [clocked(model, inputs, pruner).latency.vision for _ in range(2)] == [1, 0]


def test_what_is_left_is_the_rest(model, inputs, hands, monkeypatch):
    prepare = model.prepare_inputs_for_generation

    def slowly(*args, **kwargs):
        hands.spend(5)
        return prepare(*args, **kwargs)

    monkeypatch.setattr(model, "prepare_inputs_for_generation", slowly)
    parts = clocked(model, inputs).latency
    assert (parts.rest, parts.prefill, parts.decode) == (5, 0, 15)


def test_selection(model, inputs):
    class Slow(Random):
        name = "slow"

        def select(self, view, query):
            time.sleep(0.2)
            return super().select(view, query)

    parts = clocked(model, inputs, attach(model, Slow(keep=4))).latency
    assert parts.selection >= 0.2


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

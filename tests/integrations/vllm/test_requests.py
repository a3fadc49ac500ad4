"""One engine, many kinds of requests: no answer may come from another request's image, question or budget."""

import gc
from dataclasses import replace

import pytest

from tests.integrations.vllm import engine
from tests.integrations.vllm.checkpoints import picture, question
from tests.integrations.vllm.engine import Ask
from vlprune import Script

METHOD = Script(keep=9)


@pytest.fixture(scope="module")
def llm(folder):
    made = engine.start(folder, METHOD)
    yield made
    del made
    gc.collect()


def test_the_same_image_with_another_question_is_another_entry(llm, folder, processor):
    asks = engine.same_image(4)
    want = [engine.expected(folder, METHOD, ask) for ask in asks]
    assert len({tuple(tokens) for tokens in want}) == 4
    one_by_one = [engine.answers(llm, [ask], processor)[0] for ask in asks]
    assert one_by_one == want
    assert engine.answers(llm, asks, processor) == want  # again, from vLLM's caches


def test_a_second_question_skips_the_tower(llm, processor):
    tower, calls = engine.model_of(llm).vision_tower, []
    handle = tower.register_forward_hook(lambda *_: calls.append(1))
    engine.answers(llm, [Ask(question(300), (picture(70),))], processor)
    assert len(calls) == 1
    engine.answers(llm, [Ask(question(301), (picture(70),))], processor)
    handle.remove()
    assert len(calls) == 1


def test_a_request_may_ask_for_less(llm, folder, processor):
    asks, want = [], []
    for given, keep in (
        ({"vlprune": {"keep": 4}}, 4),
        ({"vlprune": {"keep": 0.2}}, 0.2),
        ({"image_pruning_rate": 0.75}, 0.25),
        ({}, 9),
    ):
        ask = Ask(question(400), (picture(8),))
        want.append(engine.expected(folder, Script(keep=keep), ask))
        asks.append(replace(ask, ours=given))
    assert engine.answers(llm, asks, processor) == want


def test_a_request_may_say_its_question(llm, folder, processor):
    ask = Ask(question(500), (picture(9),))
    want = engine.expected(folder, METHOD, ask, query=question(501))
    assert want != engine.expected(folder, METHOD, ask)
    assert engine.answers(llm, [replace(ask, ours={"vlprune": {"query": question(501)}})], processor) == [want]


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        ({"vlprune": {"keep": 20}}, "keep=20: 20 tokens of this image, but the engine was started for at most 9"),
        ({"vlprune": {"keep": 0}}, "keep=0: at least one token must be kept"),
        ({"vlprune": {"keep": 1.5}}, r"keep=1.5: a ratio must lie in \(0, 1\]"),
        ({"vlprune": {"tau": 0.1}}, "vlprune.tau=0.1: a request may set keep"),
        ({"image_pruning_rate": 1}, "image_pruning_rate=1: the share of tokens to drop"),
        ({"vlprune": {"keep": {"adaptive": 0.1, "mean": 4}}}, "must know the number of tokens before"),
    ],
)
def test_a_wrong_budget_is_refused_in_one_sentence(llm, processor, ours, message):
    with pytest.raises(ValueError, match=message):
        engine.answers(llm, [Ask(question(0), (picture(0),), ours=ours)], processor)

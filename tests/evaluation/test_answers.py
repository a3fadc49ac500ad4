"""Asking in batches with shared features gives what asking one by one gives."""

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from vlprune import attach
from vlprune.errors import UserError
from vlprune.evaluation import one_question as asking
from vlprune.evaluation.accuracy import whole
from vlprune.evaluation.answers import Bench, answers
from vlprune.evaluation.questions import right
from vlprune.evaluation.reference_methods import Oracle, evidence, ideal_order
from vlprune.evaluation.run_folder import Run
from vlprune.methods import AveragePool, Method, Random, Script, VisionZip, get_method
from vlprune.pocket.render import PALETTE
from vlprune.pocket.world import COLORS

METHODS = {
    "script": Script(keep=24),
    "visionzip": VisionZip(keep=24),
    "average_pool": AveragePool(keep=24),
    "fastv": get_method("fastv", keep=24),
}


def one_by_one(loaded, item, method):
    """The answer and the record of a single question, with nothing shared."""
    inputs = asking.prepare(loaded, item.image(), item.text)
    options = {"max_new_tokens": 1, "do_sample": False}
    if method is None:
        out = loaded.model.generate(**inputs, **options)
        return loaded.processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True), None
    with attach(loaded.model, method, processor=loaded.processor, dual_encoder=loaded.clip, query=item.text) as pruner:
        out = loaded.model.generate(**inputs, **options)
    return loaded.processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True), pruner.last


def gathered(loaded, items, methods, **options):
    found = {}
    for answered in answers(loaded, items, methods, **options):
        assert answered.reason is None, answered.reason
        for item, text, records in zip(answered.items, answered.texts, answered.records):
            found[answered.method, item.number] = (text, records[0].kept.tolist())
    return found


def test_batches_answer_as_single_questions_do(loaded, items):
    found = gathered(loaded, items, {"all": whole(), **METHODS}, batch=4)
    assert len(found) == len(items) * (1 + len(METHODS))
    for item in items[::3]:
        assert found["all", item.number][0] == one_by_one(loaded, item, None)[0]
        for name, method in METHODS.items():
            text, record = one_by_one(loaded, item, method)
            assert found[name, item.number] == (text, record.kept.tolist()), (name, item.text)


def test_the_tower_sees_each_image_once(loaded, items):
    seen = []
    handle = loaded.model.model.vision_tower.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(len((args or tuple(kwargs.values()))[0])), with_kwargs=True
    )
    try:
        gathered(loaded, items, {"all": whole(), **METHODS}, batch=4)
    finally:
        handle.remove()
    assert sum(seen) == len({item.group for item in items}) == 2


def test_random_draws_belong_to_the_question_and_not_to_the_batch(loaded, items):
    some = items[:6]
    single = gathered(loaded, some, {"random": Random(keep=5)}, batch=1)
    assert gathered(loaded, some, {"random": Random(keep=5)}, batch=4) == single
    kept = [tuple(kept) for _, kept in single.values()]
    assert len(set(kept)) == len(kept)
    other = gathered(loaded, some, {"random": Random(keep=5)}, batch=4, seed=1)
    assert all(other[key][1] != single[key][1] for key in single)


def test_the_oracle_keeps_what_is_asked_about(loaded, items):
    found = gathered(loaded, items, {"oracle": Oracle(keep=40)}, batch=4)
    for item in items:
        kept, things = set(found["oracle", item.number][1]), evidence(item)
        assert len(kept) == 40
        assert all(kept & set(thing.tolist()) for thing in things)
        wanted = set().union(*(thing.tolist() for thing in things)) if things else set()
        assert wanted <= kept or kept <= wanted


def test_evidence_lies_on_the_drawn_things(items):
    """Checked by the pictures: the middles of these tokens have the thing's colour or a digit's, other tokens' not."""
    on, off = [], []
    for item in items:
        pixels = np.asarray(item.image(), dtype=float) / 255
        middles = pixels.reshape(24, 8, 24, 8, 3)[:, 2:6, :, 2:6].transpose(0, 2, 1, 3, 4).reshape(576, 16, 3)
        ink = np.minimum(np.abs(middles - 0.97).max(2), np.abs(middles - 0.04).max(2)) < 0.15
        for i, tokens in zip(item.about, evidence(item)):
            color = np.array(PALETTE[COLORS.index(item.scene.things[i].color)])
            painted = ((np.abs(middles - color).max(2) < 0.12) | ink).mean(1)
            alike = [j for j, thing in enumerate(item.scene.things) if thing.color == item.scene.things[i].color]
            others = set(range(576)) - {t for j in alike for t in evidence(replace(item, about=(j,)))[0].tolist()}
            assert len(tokens) > 0
            on.append(painted[tokens.numpy()].mean())
            off.append(painted[sorted(others)].mean())
    assert min(on) > 0.5
    assert max(off) < 0.15
    assert all(sorted(ideal_order(item)) == list(range(576)) for item in items)


@dataclass(frozen=True)
class Impossible(Method):
    name: ClassVar[str] = "impossible"

    def select(self, view, query):
        raise ValueError("impossible needs what nobody has.")


def test_a_method_that_cannot_run_is_left_out_with_its_reason(bench):
    found = bench.ask({"random": Random(keep=8), "impossible": Impossible(keep=8)}, lenient=True)
    assert list(found) == ["random"]
    assert bench.run.refused == {"impossible": "impossible needs what nobody has."}
    assert len(found["random"]) == len(bench.items)
    with pytest.raises(UserError, match="what nobody has"):
        bench.ask({"impossible": Impossible(keep=8)})


def test_more_tokens_than_there_are_is_told(bench):
    with pytest.raises(UserError, match=r"keep=600.*576"):
        bench.ask({"random": Random(keep=600)})


class Stopped(BaseException):
    pass


def test_an_interrupted_run_goes_on_where_it_was(loaded, items, tmp_path):
    methods = {"random": Random(keep=16), "script": Script(keep=16)}
    straight = Bench(loaded, items, Run(tmp_path / "a", "test", {}), batch=4).ask(methods)
    asked = []

    def stop(name, count):
        asked.append(count)
        if len(asked) == 3:
            raise Stopped

    broken = Bench(loaded, items, Run(tmp_path / "b", "test", {}), batch=4, tick=stop)
    with pytest.raises(Stopped):
        broken.ask(methods)
    again: list[int] = []
    resumed = replace(broken, run=Run(tmp_path / "b", "test", {}), tick=lambda name, count: again.append(count))
    assert resumed.ask(methods) == straight
    assert sum(asked) + sum(again) == 2 * len(items)
    again.clear()
    assert resumed.ask(methods) == straight
    assert again == []


def test_lines_say_what_was_answered_and_from_how_many_tokens(bench):
    lines = bench.ask(
        {"fastv": get_method("fastv", keep=24), "script": Script(keep=24)}, note=lambda i, r: {"n": r.before}
    )
    for name, entering in (("fastv", 576), ("script", 24)):
        for item, line in zip(bench.items, lines[name]):
            assert line["q"] == item.number
            assert line["right"] == right(line["answer"], item.answers)
            assert (line["entering"], line["n"]) == (entering, 576)
    assert 24 < lines["fastv"][0]["average"] < 576
    assert lines["script"][0]["average"] == 24


def test_nothing_is_left_behind_between_answers(loaded, items):
    found = answers(loaded, items[:2], {"script": Script(keep=8), "impossible": Impossible(keep=8)})
    for _ in found:
        assert "generate" not in loaded.model.__dict__
        assert torch.is_grad_enabled()

"""Asking in batches with shared features gives what asking one by one gives."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from tests.support.evaluation_runs import answer_and_kept
from vlprune import attach
from vlprune.errors import UserError
from vlprune.evaluation.answers import Evaluation, generate_answers
from vlprune.evaluation.one_question import prepare_inputs
from vlprune.evaluation.questions import is_right
from vlprune.evaluation.reference_methods import keep_all_tokens
from vlprune.evaluation.run_folder import RunFolder
from vlprune.methods import AveragePool, Method, Random, Script, VisionZip, get_method

METHODS = {
    "script": Script(keep=24),
    "visionzip": VisionZip(keep=24),
    "average_pool": AveragePool(keep=24),
    "fastv": get_method("fastv", keep=24),
}


def one_by_one(loaded, question, method):
    """The answer and the record of a single question, with nothing shared."""
    inputs = prepare_inputs(loaded, question.image(), question.text)
    options = {"max_new_tokens": 1, "do_sample": False}
    if method is None:
        out = loaded.model.generate(**inputs, **options)
        return loaded.processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True), None
    with attach(
        loaded.model, method, processor=loaded.processor, dual_encoder=loaded.clip, query=question.text
    ) as pruner:
        out = loaded.model.generate(**inputs, **options)
    return loaded.processor.decode(out[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True), pruner.last


@pytest.fixture(scope="module")
def answered(loaded, questions):
    """What `answer_and_kept` gives for all questions in batches, and how many images the tower saw in each call."""
    seen = []
    handle = loaded.model.model.vision_tower.register_forward_pre_hook(
        lambda module, args, kwargs: seen.append(len((args or tuple(kwargs.values()))[0])), with_kwargs=True
    )
    try:
        return answer_and_kept(loaded, questions, {"all": keep_all_tokens(), **METHODS}, batch=4), seen
    finally:
        handle.remove()


def test_batches_answer_as_single_questions_do(loaded, questions, answered):
    found, _ = answered
    assert len(found) == len(questions) * (1 + len(METHODS))
    for question in questions[::3]:
        assert found["all", question.number][0] == one_by_one(loaded, question, None)[0]
        for name, method in METHODS.items():
            text, record = one_by_one(loaded, question, method)
            assert found[name, question.number] == (text, record.kept.tolist()), (name, question.text)


def test_the_tower_sees_each_image_once(questions, answered):
    _, seen = answered
    assert sum(seen) == len({question.image_name for question in questions}) == 2


@dataclass(frozen=True)
class Impossible(Method):
    name: ClassVar[str] = "impossible"

    def select(self, view, query):
        raise ValueError("impossible needs what nobody has.")


def test_a_method_that_cannot_run_is_left_out_with_its_reason(evaluation):
    found = evaluation.ask({"random": Random(keep=8), "impossible": Impossible(keep=8)}, skip_unsupported=True)
    assert list(found) == ["random"]
    assert evaluation.run_folder.refused == {"impossible": "impossible needs what nobody has."}
    assert len(found["random"]) == len(evaluation.questions)
    with pytest.raises(UserError, match="what nobody has"):
        evaluation.ask({"impossible": Impossible(keep=8)})


def test_more_tokens_than_there_are_is_told(evaluation):
    with pytest.raises(UserError, match=r"keep=600.*576"):
        evaluation.ask({"random": Random(keep=600)})


class Stopped(BaseException):
    pass


def test_an_interrupted_run_goes_on_where_it_was(loaded, questions, tmp_path):
    methods = {"random": Random(keep=16), "script": Script(keep=16)}
    straight = Evaluation(loaded, questions, RunFolder(tmp_path / "a", "test", {}), batch=4).ask(methods)
    asked = []

    def stop(name, count):
        asked.append(count)
        if len(asked) == 3:
            raise Stopped

    broken = Evaluation(loaded, questions, RunFolder(tmp_path / "b", "test", {}), batch=4, tick=stop)
    with pytest.raises(Stopped):
        broken.ask(methods)
    again: list[int] = []
    resumed = replace(
        broken, run_folder=RunFolder(tmp_path / "b", "test", {}), tick=lambda name, count: again.append(count)
    )
    assert resumed.ask(methods) == straight
    assert sum(asked) + sum(again) == 2 * len(questions)
    again.clear()
    assert resumed.ask(methods) == straight
    assert again == []


def test_lines_say_what_was_answered_and_from_how_many_tokens(evaluation):
    lines = evaluation.ask(
        {"fastv": get_method("fastv", keep=24), "script": Script(keep=24)}, details=lambda question, r: {"n": r.before}
    )
    for name, entering in (("fastv", 576), ("script", 24)):
        for question, line in zip(evaluation.questions, lines[name]):
            assert line["q"] == question.number
            assert line["right"] == is_right(line["answer"], question.answers)
            assert (line["entering"], line["n"]) == (entering, 576)
    assert 24 < lines["fastv"][0]["average"] < 576
    assert lines["script"][0]["average"] == 24


def test_nothing_is_left_behind_between_answers(loaded, questions):
    found = generate_answers(loaded, questions[:2], {"script": Script(keep=8), "impossible": Impossible(keep=8)})
    for _ in found:
        assert "generate" not in loaded.model.__dict__
        assert torch.is_grad_enabled()


def first_log_probabilities(loaded, question, method):
    """Of the first answer token, in float64, by a plain `generate` of the one question."""
    inputs = prepare_inputs(loaded, question.image(), question.text)
    attached = attach(loaded.model, method, processor=loaded.processor, dual_encoder=loaded.clip, query=question.text)
    with attached:
        out = loaded.model.generate(
            **inputs, max_new_tokens=1, do_sample=False, return_dict_in_generate=True, output_logits=True
        )
    return out.logits[0][0].double().cpu().log_softmax(0)


def test_outputs_are_compared_with_those_of_the_reference(evaluation, loaded):
    methods = {"all": keep_all_tokens(), "same": keep_all_tokens(), "script": Script(keep=8), "random": Random(keep=2)}
    lines = evaluation.ask(methods, reference="all")
    assert {line["kl"] for name in ("all", "same") for line in lines[name]} == {0.0}
    script = evaluation.questions[::5]
    for question in script:
        p, q = (first_log_probabilities(loaded, question, methods[name]) for name in ("all", "script"))
        wanted = float((p.exp() * (p - q)).sum())
        (found,) = [line["kl"] for line in lines["script"] if line["q"] == question.number]
        assert found == pytest.approx(wanted, rel=2e-3, abs=1e-6)
    assert max(line["kl"] for line in lines["random"]) > 0.01
    assert "kl" not in evaluation.ask({"other": Random(keep=4)})["other"][0]


def test_divergences_are_kept_when_a_run_goes_on(loaded, questions, tmp_path, monkeypatch):
    """The reference's answers are known then; its first token is computed again, for the new method only."""
    run = Evaluation(loaded, questions, RunFolder(tmp_path / "run", "test", {}), batch=4)
    first = {"all": keep_all_tokens(), "script": Script(keep=8)}
    before = run.ask(first, reference="all")
    straight = Evaluation(loaded, questions, RunFolder(tmp_path / "straight", "test", {}), batch=4)
    more = first | {"graph": get_method("graph_only", keep=8)}
    wanted = straight.ask(more, reference="all")
    lengths = []
    generate = type(loaded.model).generate

    def record(self, *args, **kwargs):
        lengths.append(kwargs["max_new_tokens"])
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(type(loaded.model), "generate", record)
    again = replace(run, run_folder=RunFolder(tmp_path / "run", "test", {}), max_new_tokens=2).ask(
        more, reference="all"
    )
    assert {name: again[name] for name in first} == before
    for one, other in zip(again["graph"], wanted["graph"]):
        assert one["kl"] == pytest.approx(other["kl"], rel=1e-3, abs=1e-7)
    assert sorted(set(lengths)) == [1, 2]  # the reference's, and the new method's
    assert lengths.count(1) == lengths.count(2)
    lengths.clear()
    assert run.ask(more, reference="all") == again
    assert lengths == []

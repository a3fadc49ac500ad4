"""The parts of the model for lmms-eval, without lmms-eval: questions, answers on disk, likelihoods, broken samples."""

import json

import pytest
import torch

from vlprune import DivPrune, pocket
from vlprune.evaluation.load_model import load_model
from vlprune.integrations.lmms_eval.answer_file import AnswerFile
from vlprune.integrations.lmms_eval.answerer import Answerer
from vlprune.integrations.lmms_eval.answering import BATCHES_PER_BLOCK, MANY_SKIPPED, Answering
from vlprune.integrations.lmms_eval.samples import Request, find_question, sample_from_messages
from vlprune.integrations.lmms_eval.settings import method_of

QUESTIONS = ["is there a red circle?", "how many things are there?", "what color is the square?", "where is the star?"]


@pytest.fixture(scope="module")
def loaded():
    return load_model("pocket", None, "cpu")


@pytest.fixture(scope="module")
def documents():
    """Documents of a task, as lmms-eval has them."""
    shown = pocket.images(pocket.scenes("test", len(QUESTIONS)))
    return [{"question": question, "image": image} for question, image in zip(QUESTIONS, shown)]


def messages(document):
    parts = [{"type": "image", "url": document["image"]}, {"type": "text", "text": document["question"]}]
    return [{"role": "user", "content": parts}]


def requests(documents, options=None):
    told = {"task": "drawn", "split": "test", "options": options or {"max_new_tokens": 2}, "to_messages": messages}
    return [Request(f"drawn/{i}", document=i, text=one["question"], **told) for i, one in enumerate(documents)]


DOCUMENTS = {
    "plain": ({"question": "What is it?"}, "What is it?"),
    "MME": (
        {"question": "Is it red? Please answer yes or no."},
        "Is it red? Please answer yes or no.",
    ),  # attach cleans
    "options in it": ({"question": "What is it?\nA. a cat\nB. a dog\nC. a cow"}, "What is it?"),
    "one option is none": ({"question": "What is it?\nA. is the hint."}, "What is it?\nA. is the hint."),
    "options alone": ({"question": "A. a cat\nB. a dog"}, "A. a cat\nB. a dog"),
    "none": ({"text": "What is it?"}, None),
    "no text": ({"question": ["What is it?"]}, None),
    "only a hint": ({"question": "Answer yes or no."}, None),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_the_question_of_a_document(name):
    document, question = DOCUMENTS[name]
    assert find_question(document) == question


def test_without_one_the_last_turn_is_the_question():
    turns = [
        {"role": "user", "content": [{"type": "image", "url": None}, {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "a cat"}]},
        {"role": "user", "content": [{"type": "text", "text": "And its colour?"}]},
    ]
    assert sample_from_messages(turns, {}).question == "And its colour?"
    with pytest.raises(ValueError, match=r"type='audio': a turn may hold text, images and videos\."):
        sample_from_messages([{"role": "user", "content": [{"type": "audio", "url": "a.wav"}]}], {})


def test_a_line_that_was_cut_off_is_dropped(tmp_path):
    file = AnswerFile(tmp_path / "a@1")
    file.append([{"key": "x", "answer": "1"}, {"key": "y", "answer": "2"}])
    file.path.write_text(file.path.read_text()[:-5])
    again = AnswerFile(tmp_path / "a@1")
    assert list(again.known) == ["x"]
    again.append([{"key": "y", "answer": "3"}])
    assert AnswerFile(tmp_path / "a@1").known["y"]["answer"] == "3"
    assert list(AnswerFile(tmp_path / "a@16").known) == []


@pytest.mark.parametrize("method", [None, DivPrune(keep=32)], ids=["all tokens", "pruned"])
def test_the_likelihood_of_several_tokens(loaded, documents, method):
    """Beside a forward of prompt and continuation, a token at a time and without a cache."""
    said, one = " red circle", sample_from_messages(messages(documents[0]), documents[0])
    answerer = Answerer(loaded, method)
    try:
        total, greedy = answerer.loglikelihood(one, said)
        inputs = answerer.prepare([one])
        ids = loaded.processor.tokenizer(said, add_special_tokens=False)["input_ids"]
        assert len(ids) == 2
        expected, kept = 0.0, []
        for token in ids:
            with torch.no_grad():
                logits = loaded.model(**inputs).logits[0, -1].float()
            expected += logits.log_softmax(-1)[token].item()
            kept += [answerer.pruner.last.kept.tolist()] if method else []
            more = torch.tensor([[token]])
            inputs["input_ids"] = torch.cat([inputs["input_ids"], more], dim=1)
            inputs["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(more)], dim=1)
        assert all(one == kept[0] for one in kept)  # DivPrune does not read the prompt
    finally:
        answerer.close()
    assert total == pytest.approx(expected, abs=1e-3)
    assert not greedy
    best = answers(loaded, documents, method)[0]
    answerer = Answerer(loaded, method)
    assert answerer.loglikelihood(one, f" {best}")[1]
    answerer.close()


def answers(loaded, documents, method=None, **options):
    answerer = Answerer(loaded, method)
    try:
        return Answering(answerer, {"drawn": {"test": documents}}, **options).generate(requests(documents))
    finally:
        answerer.close()


def test_shares_make_the_whole(loaded, documents, tmp_path):
    whole = answers(loaded, documents, batch_size=2)
    for i in range(2):
        file = AnswerFile(tmp_path / "cell", i)
        found = answers(loaded, documents, file=file, share=(i, 2))
        assert [one for one in found if one] == [one for j, one in enumerate(whole) if j % 2 == i or (i and j % 2 == 0)]
    lines = [json.loads(line) for line in (tmp_path / "cell.1.jsonl").read_text().splitlines()]
    assert {line["key"] for line in lines} == {"drawn/1", "drawn/3"}  # what process 0 answered was not asked again


def test_a_broken_sample_costs_no_other_its_answer(loaded, documents):
    whole = answers(loaded, documents)
    broken = [*documents[:1], {**documents[1], "image": "no image"}, *documents[2:]]
    answerer = Answerer(loaded, None)
    answering = Answering(answerer, {"drawn": {"test": broken}}, batch_size=4)
    assert answering.generate(requests(broken)) == [whole[0], "", *whole[2:]]
    ((key, reason),) = answering.skipped
    assert key == "drawn/1"
    assert "convert" in reason


def test_where_nothing_works_the_error_is_raised(loaded, documents):
    broken = [{**one, "image": "no image"} for one in documents]
    with pytest.raises(AttributeError, match="convert"):
        answers(loaded, broken)


def test_many_failures_in_a_row_stop_a_run_that_has_answers(loaded, documents):
    """As when the disk is full or the GPU has failed: no fault of single samples."""
    many = [documents[0], *[{**documents[1], "image": "no image"}] * (MANY_SKIPPED + BATCHES_PER_BLOCK)]
    answerer = Answerer(loaded, None)
    answering = Answering(answerer, {"drawn": {"test": many}}, batch_size=1)
    with pytest.raises(AttributeError, match="convert"):
        answering.generate(requests(many))
    assert len(answering.skipped) == BATCHES_PER_BLOCK - 1 + MANY_SKIPPED  # the one that can be asked is the shortest
    mixed = [documents[0] if i % 4 == 0 else {**documents[1], "image": "no image"} for i in range(MANY_SKIPPED + 16)]
    answering = Answering(answerer, {"drawn": {"test": mixed}}, batch_size=1)
    assert sum(map(bool, answering.generate(requests(mixed)))) == len(mixed) / 4
    assert len(answering.skipped) == 3 * len(mixed) / 4 > MANY_SKIPPED


def test_settings_that_are_none():
    for name, settings, told in [
        ("none", {"keep": 64}, r"keep=64: method=none keeps all tokens"),
        ("random", {"keep": 64, "per_tile": 4}, r"keep=64: name one budget, keep or per_tile"),
        ("skript", {}, r"skript"),
    ]:
        with pytest.raises(ValueError, match=told):
            method_of(name, settings)

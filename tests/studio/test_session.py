"""A session: one run of the tower, the library's own choices, and the plain model's own answers."""

import json
import subprocess
import sys
import threading

import pytest
import torch

from vlprune import CDPruner, FastV, Random, Script, attach
from vlprune.errors import UserError
from vlprune.evaluation.load_model import LoadedModel
from vlprune.evaluation.one_question import prepare_inputs
from vlprune.studio.session import Session


@pytest.fixture
def tower_runs(loaded):
    runs = []
    handle = loaded.model.model.vision_tower.register_forward_hook(lambda *_: runs.append(1))
    yield runs
    handle.remove()


def generated(loaded, image, question, method=None):
    """The answer and the records of a plain call of the library."""
    inputs = prepare_inputs(loaded, image, question)

    def answer():
        new = loaded.model.generate(**inputs, max_new_tokens=64, do_sample=False)[:, inputs["input_ids"].shape[1] :]
        return loaded.processor.batch_decode(new, skip_special_tokens=True)[0].strip()

    if method is None:
        return answer(), []
    with attach(loaded.model, method, processor=loaded.processor, query=question, dual_encoder=loaded.clip) as pruner:
        return answer(), pruner.records


@pytest.mark.parametrize("method", [Script(keep=40), CDPruner(keep=0.1), Random(keep=7), FastV(keep=30)], ids=repr)
def test_it_chooses_what_generate_chooses(session, loaded, drawn, method):
    image, question = drawn
    record = session.select(question.text, method).record
    _, (expected,) = generated(loaded, image, question.text, method)
    assert torch.equal(record.kept, expected.kept)
    assert record.scores.keys() == expected.scores.keys()
    for name, scores in expected.scores.items():
        assert torch.equal(record.scores[name], scores)


def test_the_tower_runs_once_for_all_questions_methods_and_answers(session, drawn, tower_runs):
    question = drawn[1].text
    for keep in (64, 16):
        session.select(question, Script(keep=keep))
    session.select("how many stars are there?", CDPruner(keep=9))
    list(session.answer(question, None))
    list(session.answer(question, Script(keep=16)))
    session.pair(question, 3, 40)
    assert len(tower_runs) == 1
    session.show(drawn[0].rotate(90))
    session.select(question, Script(keep=64))
    assert len(tower_runs) == 2


@pytest.mark.parametrize("method", [None, Script(keep=24)], ids=repr)
def test_answers_are_those_of_generate_and_come_in_pieces(session, loaded, drawn, method):
    image, question = drawn
    *written, result = session.answer(question.text, method)
    expected, records = generated(loaded, image, question.text, method)
    assert result.answer == expected
    assert written
    assert all(expected.startswith(part.answer) and part.cost is None for part in written)
    assert result.cost.visual_tokens == (576 if method is None else 24)
    assert result.cost.latency.vision == 0  # the session ran the tower before
    if records:
        assert torch.equal(result.record.kept, records[0].kept)


def test_a_method_that_cannot_run_says_why_and_leaves_the_model_free(session, loaded, drawn):
    question = drawn[1].text
    (result,) = session.answer(question, Script(keep=1000))
    assert result.cost is None
    assert result.reason.startswith("--keep 1000: ")
    with pytest.raises(UserError, match=r"^--keep 1000: "):
        session.select(question, Script(keep=1000))
    assert session.select(question, Script(keep=10)).record.after == 10


def test_an_answer_that_nobody_waits_for_stops(session, loaded, drawn):
    answer = session.answer(drawn[1].text, Script(keep=24))
    next(answer)
    answer.close()
    assert "generate" not in loaded.model.__dict__  # the pruner is gone
    assert session.select(drawn[1].text, Script(keep=10)).record.after == 10


def test_sessions_share_the_model_and_nothing_else(loaded, drawn):
    lock = threading.Lock()
    first, second = Session(loaded, lock), Session(loaded, lock)
    first.show(drawn[0])
    with pytest.raises(UserError, match="there is no image yet"):
        second.select(drawn[1].text, Script(keep=10))
    second.show(drawn[0].rotate(180))
    question, found = drawn[1].text, {}

    def choose(name, session):
        found[name] = [session.select(question, Script(keep=20)).record.kept for _ in range(3)]

    threads = [threading.Thread(target=choose, args=pair) for pair in (("first", first), ("second", second))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, image in (("first", drawn[0]), ("second", drawn[0].rotate(180))):
        expected = generated(loaded, image, question, Script(keep=20))[1][0].kept
        assert len(found[name]) == 3
        assert all(torch.equal(kept, expected) for kept in found[name])


def test_the_cosine_of_two_tokens(session, drawn):
    question = drawn[1].text
    features = session.tokens(question)[0].features[0].double()
    expected = float(features[3] @ features[40] / (features[3].norm() * features[40].norm()))
    pair = session.pair(question, 3, 40)
    assert pair.cosine == pytest.approx(expected, abs=1e-12)
    assert pair.meet  # an odd token and an even one
    assert pair.joined == (expected >= 0.3)
    assert not session.pair(question, 3, 41).meet
    assert not session.pair(question, 3, 40, tau=1.0).joined
    with pytest.raises(UserError, match="token 576: this image has tokens 0 to 575"):
        session.pair(question, 3, 576)


def test_files_that_cannot_be_opened_say_so_and_leave_nothing(session, tmp_path):
    path = tmp_path / "a.png"
    path.write_text("no image")
    with pytest.raises(UserError, match=r"^'a.png' is not an image"):
        session.open(path)
    assert not session.has_image
    film = tmp_path / "film.mp4"
    film.write_bytes(b"")
    with pytest.raises(UserError, match="--model pocket takes images only"):
        session.open(film)


def test_too_many_pixels(session, scene_file):
    with pytest.raises(UserError, match="too large: 192 x 192 pixels"):
        session.open(scene_file, max_pixels=1000)


@pytest.mark.parametrize("question", ["", "  "])
def test_an_empty_question(session, question):
    with pytest.raises(UserError, match="the question is empty"):
        session.select(question, Script(keep=10))


def test_tiles_are_one_image(drawn):
    from tests.support.family_checkpoints import CASES, processor

    loaded = LoadedModel("llava_next", CASES["llava_next"].model(), processor("llava_next"), None)
    session = Session(loaded, threading.Lock())
    session.show(drawn[0].resize((64, 50)))
    choice = session.select("what is it ?", Script(keep=6))
    view, query = session.tokens("what is it ?")
    assert choice.record.before == view.n > 16
    assert len(choice.record.parts) > 2
    assert query.source == "llm"
    expected = Script(keep=6).select(view, query)
    assert torch.equal(choice.record.kept, expected.kept[0])


def test_a_video(film, tmp_path):
    """In a process of its own, for processors of videos want torchvision."""
    command = [sys.executable, "-m", "tests.support.studio_video", str(tmp_path), film]
    said = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1])
    assert said["kind"] == "video"
    assert said["frames"] == said["pictures"] == 4
    assert said["after"] == 12
    assert said["rects"] == said["before"]
    assert said["answered"]

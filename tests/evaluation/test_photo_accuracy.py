"""`vlprune eval` of a photo model on captioned photographs, end to end with a tiny model, against direct answers."""

import json
from pathlib import Path

import pytest
import torch

from tests.support.evaluation_runs import read_lines
from tests.support.photo_parts import tiny_network, write_photographs, write_tower
from vlprune.evaluation import answers
from vlprune.evaluation.captioned_photos import photo_questions
from vlprune.evaluation.load_model import load_model
from vlprune.evaluation.one_question import prepare_inputs
from vlprune.evaluation.yes_no import auc, yes_no_tokens
from vlprune.pocket.photo_folder import write_folder
from vlprune.pocket.train_photo import save_model

METHODS = "script,random,divprune,visionzip,trim,relevance_top_k"


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    """Photographs with captions, and the folder of a photo model with random weights."""
    parts = write_photographs(tmp_path_factory.mktemp("parts"))
    network, processor = tiny_network(parts, write_tower(parts / "tower"))
    save_model(network, parts / "trained")
    processor.save_pretrained(parts / "trained")
    write_folder(parts / "trained", parts / "photo")
    return parts


@torch.no_grad()
def first_logits(loaded, question, kept):
    """The first answer token's logits with these visual tokens, by the parts of the model one after the other."""
    inputs = prepare_inputs(loaded, question.image(), question.text)
    tokens = loaded.model.get_image_features(pixel_values=inputs["pixel_values"]).pooler_output[0][kept]
    ids = inputs["input_ids"][0]
    shown = ids == loaded.model.config.image_token_id
    words = loaded.model.get_input_embeddings()(ids[~shown])
    first = int(shown.nonzero()[0])
    embeds = torch.cat([words[:first], tokens, words[first:]])[None]
    return loaded.model.lm_head(loaded.model.model.language_model(inputs_embeds=embeds).last_hidden_state[0, -1])


def test_photographs_are_scored_located_and_set_beside_the_paper(program, parts, monkeypatch):
    data = parts / "text" / "captions.txt"
    words = ("eval", "--model", parts / "photo", "--data", data, "--split", "validation", "--questions", 2)
    words += ("--methods", METHODS, "--keep", 16, "--batch", 8, "--out", "run")
    code, _, err = program(*words)
    assert code == 0, err
    found = json.loads(Path("run/result.json").read_text())
    titles = [table["title"] for table in found["tables"]]
    places = titles.index("Answers from the place alone")
    assert titles[places + 1] == "By size of what is asked about"
    assert titles[-1] == "Order of methods beside the paper's"
    asked = {question.number: question for question in photo_questions(data, "validation", 2)}
    whole = {line["q"]: line for line in read_lines("run", "all_tokens")}
    assert sorted(whole) == sorted(asked)
    _check_yes_no(found, asked, whole)
    _check_places(parts, found, asked, whole)
    order = found["tables"][-1]
    assert [row[:2] for row in order["rows"]] == [["llava-1.5-7b", "16"], ["ablation", "16"]]
    monkeypatch.setattr(answers, "_answer_batch", lambda *given: pytest.fail("nothing is left to ask"))
    assert program(*words)[0] == 0
    code, _, err = program(*("test" if word == "validation" else word for word in words))
    assert "holds a run with split=validation, not test" in err


def _check_yes_no(found, asked, whole):
    scores = found["data"]["yes_no"]["all tokens"]
    for kind in ("existence", "inset"):
        own = [question for question in asked.values() if question.kind == kind]
        margins, truth = [whole[q.number]["yes"] for q in own], [q.answers == ("yes",) for q in own]
        assert scores[kind]["auc"] == auc(margins, truth)
        assert scores[kind]["asked"] == len(own)
    assert all(("yes" in whole[q.number]) == (q.answers[0] in ("yes", "no")) for q in asked.values())


def _check_places(parts, found, asked, whole):
    """The place alone, others alone and all tokens are answered as the model's parts do, one question at a time."""
    loaded = load_model(str(parts / "photo"), None, "cpu")
    located = [question for question in asked.values() if question.place]
    inside = {line["q"]: line for line in read_lines("run", "only its place")}
    outside = {line["q"]: line for line in read_lines("run", "as many outside it")}
    oracle = {line["q"]: line for line in read_lines("run", "oracle@16")}
    assert sorted(inside) == sorted(outside) == sorted(oracle) == sorted(q.number for q in located)
    (yes,), (no,) = yes_no_tokens(loaded.processor)
    for question in located:
        assert inside[question.number]["entering"] == outside[question.number]["entering"] == len(question.place)
        assert oracle[question.number]["entering"] == 16
        for kept, lines in ((list(question.place), inside), (list(range(576)), whole)):
            logits = first_logits(loaded, question, kept)
            answer = loaded.processor.tokenizer.decode(logits.argmax())
            assert lines[question.number]["answer"] == answer.strip()
            if question.kind == "inset":
                assert lines[question.number]["yes"] == pytest.approx(
                    float(logits[yes] - logits[no]), rel=2e-2, abs=2e-3
                )
    right = sum(line["right"] for line in inside.values()) / len(inside)
    assert found["data"]["locality"]["only its place"]["accuracy"] == right
    table = next(table for table in found["tables"] if table["title"] == "Answers from the place alone")
    assert [row[0] for row in table["rows"]] == ["all tokens", "only its place", "as many outside it", "oracle"]


def test_the_photo_model_needs_data(program):
    code, _, err = program("eval", "--model", "photo")
    assert code == 2
    assert err.splitlines()[-1].startswith("vlprune: --model photo: say --data with a list of captions")


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (("--methods", "oracle,random"), "--methods oracle: with a list of captions it is asked anyway"),
        (("--resolution", 672), "--resolution 672: pictures made of captions have 336 pixels a side."),
    ],
)
def test_what_does_not_go_with_captions(program, parts, more, sentence):
    data = parts / "text" / "captions.txt"
    code, _, err = program("eval", "--model", parts / "photo", "--data", data, "--keep", 16, *more, "--out", "run")
    assert code == 2
    assert sentence in err

"""The demo's pictures are chosen by their rule, and say how well relevance does on them."""

from dataclasses import replace
from statistics import fmean

import pytest
import torch
from PIL import Image, ImageChops, ImageStat

from tests.support.versions import needs_newer_matplotlib
from tests.test_docs import ROOT
from vlprune import Script, pocket
from vlprune.cli import demo as command
from vlprune.evaluation import demo_scenes
from vlprune.evaluation.answers import generate_answers
from vlprune.evaluation.demo import rank_asked, run_demo
from vlprune.evaluation.demo_scenes import DEMO_SCENE, PHOTO_SCENE, PICTURED_KINDS, drawn_scene, photo_scene
from vlprune.evaluation.load_model import load_model
from vlprune.evaluation.questions import ImageQuestion
from vlprune.pocket.photo_folder import find_folder
from vlprune.show import save_picture

SCENES = 21
PICTURES = find_folder() / "pictures"


def first_scenes():
    """The first drawn scenes that have questions of all pictured kinds, by their numbers."""
    found, number = {}, 0
    while len(found) < SCENES:
        if len(pocket.questions(pocket.scenes("test", 1, start=number)[0], PICTURED_KINDS)) == len(PICTURED_KINDS):
            found[number] = drawn_scene(number)
        number += 1
    return found


def middle_one(loaded, scenes, tmp_path):
    """(the scene in the middle, the mean over scenes) by how well relevance finds what is asked; and right answers."""
    questions, pictured = [], {}
    for number, scene in scenes.items():
        path = tmp_path / f"{number}.png"
        scene.image.save(path)
        for one in scene.questions:
            if one.pictured:
                pictured[len(questions)] = number, one.asked
                questions.append(ImageQuestion(len(questions), path.name, "any", one.text, (one.answer,), path=path))
    ranks, right = {number: [] for number in scenes}, 0
    for answered in generate_answers(loaded, questions, {"script": Script(keep=64)}, max_new_tokens=4):
        for question, text, (record,) in zip(answered.questions, answered.texts, answered.records):
            number, asked = pictured[question.number]
            ranks[number].append(rank_asked(record.relevance.cpu(), asked))
            right += text == question.answers[0]
    in_order = sorted(ranks, key=lambda number: fmean(ranks[number]))
    return in_order[SCENES // 2], fmean(map(fmean, ranks.values())), right / len(questions)


@pytest.fixture(scope="module")
def photo_model():
    return load_model("photo", None, "cpu")


def test_the_scene_is_the_middle_one(loaded, tmp_path):
    middle, mean, right = middle_one(loaded, first_scenes(), tmp_path)
    assert middle == DEMO_SCENE == command.DEMO_SCENE
    assert mean > 0.9  # relevance is worth a panel: what is asked about scores higher than the rest
    assert right > 0.95


def test_the_photograph_is_the_middle_one(photo_model, tmp_path):
    scenes = {number: photo_scene(number, PICTURES) for number in range(SCENES)}
    middle, mean, right = middle_one(photo_model, scenes, tmp_path)
    assert middle == PHOTO_SCENE == command.PHOTO_SCENE
    assert mean > 0.85
    assert right > 0.7  # the weights that are shipped read cards on photographs


def test_the_picture_says_what_its_records_hold(loaded):
    demo = run_demo(loaded, Script(keep=16), drawn_scene(3), 1)
    picture = demo.picture()
    shown = [answer for answer in demo.answers if answer.question.pictured]
    assert len(picture["records"]) == len(shown) > 0
    for answer, titles in zip(shown, picture["panel_titles"]):
        asked = answer.question.asked
        kept = torch.zeros(576, dtype=torch.bool)
        kept[answer.record.kept] = True
        assert titles["kept"] == f"kept 16 of 576, {(kept & asked).sum()} of {asked.sum()} where asked"
        share = rank_asked(answer.record.relevance, asked)
        assert titles["relevance"] == f"relevance: asked beats {100 * share:.0f} % of the rest"


def test_relevance_is_rated_only_where_a_place_is_asked_about(loaded):
    nowhere = replace(drawn_scene(3).questions[0], asked=torch.zeros(576, dtype=torch.bool), pictured=True)
    picture = run_demo(loaded, Script(keep=16), replace(drawn_scene(3), questions=[nowhere]), 1).picture()
    assert picture["panel_titles"] == [{"kept": "kept 16 of 576, 0 of 0 where asked"}]


@needs_newer_matplotlib
def test_the_picture_of_readme_is_the_demos(photo_model, tmp_path):
    """Seen small, for fonts differ; another photograph would be 8 levels of 255 apart, or more."""
    scene = photo_scene(PHOTO_SCENE, PICTURES)
    scene = replace(scene, questions=[one for one in scene.questions if one.pictured])  # the others are not seen
    save_picture(tmp_path / "demo.png", **run_demo(photo_model, Script(keep=64), scene, 1).picture())
    small = [
        Image.open(path).convert("RGB").resize((96, 91)) for path in (tmp_path / "demo.png", ROOT / "docs/demo.png")
    ]
    assert fmean(ImageStat.Stat(ImageChops.difference(*small)).mean) < 3


@pytest.mark.parametrize("number", range(3))
def test_a_photograph_and_its_cards(number):
    scene = photo_scene(number, PICTURES)
    cards, things = scene.questions[:3], scene.questions[3:]
    assert scene.image.size == (336, 336)
    for card in cards:
        (mark,) = card.marks
        at = card.asked.nonzero()[:, 0]
        middle = (at % 24).float().mean() * 14 + 7, (at // 24).float().mean() * 14 + 7
        assert abs(middle[0] - mark.x) < 14
        assert abs(middle[1] - mark.y) < 14
    assert [one.answer for one in things] == ["yes", "no"]
    assert not any(one.pictured or one.asked.any() for one in things)
    assert photo_scene(number, PICTURES).image.tobytes() == scene.image.tobytes()


def test_every_photograph_is_shipped():
    assert sorted(path.name for path in PICTURES.iterdir()) == sorted(demo_scenes.PHOTOGRAPHS)


def test_without_pictured_questions_all_are_pictured(loaded):
    scene = drawn_scene(3)
    scene = replace(scene, questions=[replace(one, pictured=False) for one in scene.questions[:2]])
    assert len(run_demo(loaded, Script(keep=16), scene, 1).picture()["records"]) == 2

"""The demo's scene is chosen by its rule, and its picture says how well relevance does on it."""

from statistics import fmean

import torch

from vlprune import Script, pocket
from vlprune.evaluation.answers import generate_answers
from vlprune.evaluation.demo import DEMO_SCENE, PICTURED_KINDS, rank_asked, run_demo, tokens_asked_about
from vlprune.evaluation.questions import ImageQuestion

SCENES = 21


def pictured_questions():
    """The questions of the pictured kinds about the first scenes that have them all, by the scene's number."""
    found, number = {}, 0
    while len(found) < SCENES:
        (scene,) = pocket.scenes("test", 1, start=number)
        asked = pocket.questions(scene, PICTURED_KINDS)
        if len(asked) == len(PICTURED_KINDS):
            found[number] = [
                ImageQuestion(100 * number + i, scene.name, one.kind, one.text, (one.answer,), scene, one.about)
                for i, one in enumerate(asked)
            ]
        number += 1
    return found


def test_the_scene_is_the_middle_one(loaded):
    by_scene = pictured_questions()
    ranks = {number: [] for number in by_scene}
    everything = [question for questions in by_scene.values() for question in questions]
    for answered in generate_answers(loaded, everything, {"script": Script(keep=64)}):
        for question, (record,) in zip(answered.questions, answered.records):
            asked = tokens_asked_about(question.scene, question, 24)
            ranks[question.number // 100].append(rank_asked(record.relevance.cpu(), asked))
    assert all(len(found) == len(PICTURED_KINDS) for found in ranks.values())
    in_order = sorted(ranks, key=lambda number: fmean(ranks[number]))
    assert in_order[SCENES // 2] == DEMO_SCENE
    # relevance is worth a panel: what is asked about scores higher than the rest
    assert fmean(map(fmean, ranks.values())) > 0.9


def test_the_picture_says_what_its_records_hold(loaded):
    demo = run_demo(loaded, Script(keep=16), 3, 1)
    picture = demo.picture()
    shown = [answer for answer in demo.answers if answer.question.kind in PICTURED_KINDS]
    assert len(picture["records"]) == len(shown) > 0
    for answer, titles in zip(shown, picture["panel_titles"]):
        asked = tokens_asked_about(demo.scene, answer.question, 24)
        kept = torch.zeros(576, dtype=torch.bool)
        kept[answer.record.kept] = True
        assert titles["kept"] == f"kept 16 of 576, {(kept & asked).sum()} of {asked.sum()} where asked"
        share = rank_asked(answer.record.relevance, asked)
        assert titles["relevance"] == f"relevance: asked beats {100 * share:.0f} % of the rest"

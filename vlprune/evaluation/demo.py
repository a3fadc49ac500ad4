"""The demo's work: a drawn scene, asked about with all visual tokens and with those that a method keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from PIL import Image

from vlprune import pocket
from vlprune.evaluation.load_model import LoadedModel
from vlprune.evaluation.one_question import (
    attach_pruner,
    cost_as_json,
    decode_answer,
    measure_answer,
    prepare_inputs,
    tokens_as_json,
)
from vlprune.measure import GenerationCost, measure_generate
from vlprune.media.image import image_from_pixels
from vlprune.methods import Method
from vlprune.pocket.render import images
from vlprune.pocket.world import Question, Scene
from vlprune.record import Record

PICTURED_KINDS = ("color", "digit", "where")  # of the questions that the picture shows


@dataclass(frozen=True)
class DemoAnswer:
    """One question, its answers with all tokens and with the method's, what both cost, and what the method kept."""

    question: Question
    answers: tuple[str, str]
    costs: tuple[GenerationCost, GenerationCost]
    record: Record

    def to_json(self) -> dict[str, Any]:
        """The same, for JSON."""
        truth = self.question.answer
        both = {
            name: {"answer": answer, "right": answer == truth, **cost_as_json(cost)}
            for name, answer, cost in zip(("all", "kept"), self.answers, self.costs)
        }
        return {"question": self.question.text, "truth": truth, **both, "tokens": tokens_as_json(self.record)}


@dataclass(frozen=True)
class Demo:
    """A scene, the image as the model saw it, and what was answered about it."""

    scene: Scene
    seen: Image.Image
    answers: list[DemoAnswer]

    def picture(self) -> dict[str, Any]:
        """The arguments of `show.save_picture`: a row for each question of the kinds in `PICTURED_KINDS`."""
        from vlprune.show import Mark

        rows = [answer for answer in self.answers if answer.question.kind in PICTURED_KINDS] or self.answers
        things = [[self.scene.things[i] for i in answer.question.about] for answer in rows]
        return {
            "image": self.seen,
            "records": [answer.record for answer in rows],
            "titles": [f"{answer.question.text} → {answer.answers[1]}" for answer in rows],
            "marks": [[Mark(thing.x, thing.y, 1.3 * thing.radius) for thing in about] for about in things],
        }


def run_demo(loaded: LoadedModel, method: Method, scene: int, repeats: int) -> Demo:
    """Draw a scene of the test split and ask all there is to ask about it, with all tokens and with the method's."""
    (drawn,) = pocket.scenes("test", 1, start=scene)
    (image,) = images([drawn])
    questions = pocket.questions(drawn)
    prompts = [prepare_inputs(loaded, image, question.text) for question in questions]
    answers = [
        _answer_both_ways(loaded, method, question, prompt, repeats=repeats, warmup=int(i == 0))
        for i, (question, prompt) in enumerate(zip(questions, prompts))
    ]
    return Demo(drawn, image_from_pixels(prompts[0]["pixel_values"][0], loaded.processor), answers)


def _answer_both_ways(
    loaded: LoadedModel, method: Method, question: Question, prompt: dict[str, Any], **options: int
) -> DemoAnswer:
    """Answer with all tokens, then with the method's; `options` go to `measure_generate`."""
    plain = measure_generate(loaded.model, prompt, max_new_tokens=8, **options)
    with attach_pruner(loaded, method, question.text) as pruner:
        pruned = measure_answer(loaded, pruner, prompt, max_new_tokens=8, **options)
    answers = decode_answer(loaded, plain), decode_answer(loaded, pruned)
    return DemoAnswer(question, answers, (plain, pruned), pruner.last)

"""The demo's work: a drawn scene, asked about with all visual tokens and with those that a method keeps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vlprune.evaluation.one_question import chosen, cost, decoded, measured, prepare, prune

if TYPE_CHECKING:
    from PIL import Image

    from vlprune.evaluation.load_model import Loaded
    from vlprune.measure import Run
    from vlprune.methods import Method
    from vlprune.pocket.world import Question, Scene
    from vlprune.record import Record

PICTURED = ("color", "digit", "where")  # the kinds of question that the picture shows


@dataclass(frozen=True)
class Asked:
    """One question, answered with all tokens and with the method's, and what the method kept."""

    question: Question
    answers: tuple[str, str]
    runs: tuple[Run, Run]
    record: Record

    def facts(self) -> dict[str, Any]:
        """The same, for JSON."""
        truth = self.question.answer
        ways = {
            way: {"answer": answer, "right": answer == truth, **cost(run)}
            for way, answer, run in zip(("all", "kept"), self.answers, self.runs)
        }
        return {"question": self.question.text, "truth": truth, **ways, "tokens": chosen(self.record)}


@dataclass(frozen=True)
class Demo:
    """A scene, the image as the model saw it, and what was asked."""

    scene: Scene
    seen: Image.Image
    asked: list[Asked]

    def picture(self) -> dict[str, Any]:
        """What `show.save_picture` takes: a row for each question of the kinds in `PICTURED`."""
        from vlprune.show import Mark

        rows = [asked for asked in self.asked if asked.question.kind in PICTURED] or self.asked
        things = [[self.scene.things[i] for i in asked.question.about] for asked in rows]
        return {
            "image": self.seen,
            "records": [asked.record for asked in rows],
            "titles": [f"{asked.question.text} → {asked.answers[1]}" for asked in rows],
            "marks": [[Mark(thing.x, thing.y, 1.3 * thing.radius) for thing in about] for about in things],
        }


def run_demo(loaded: Loaded, method: Method, scene: int, repeats: int) -> Demo:
    """Draw a scene of the test split and ask all there is to ask about it, both ways."""
    from vlprune import pocket
    from vlprune.media.image import as_seen
    from vlprune.pocket.render import images

    (drawn,) = pocket.scenes("test", 1, start=scene)
    (image,) = images([drawn])
    questions = pocket.questions(drawn)
    prompts = [prepare(loaded, image, question.text) for question in questions]
    asked = [
        _both_ways(loaded, method, question, prompt, repeats=repeats, warmup=int(i == 0))
        for i, (question, prompt) in enumerate(zip(questions, prompts))
    ]
    return Demo(drawn, as_seen(prompts[0]["pixel_values"][0], loaded.processor), asked)


def _both_ways(loaded: Loaded, method: Method, question: Question, prompt: dict[str, Any], **options: int) -> Asked:
    from vlprune.measure import measure_generate

    plain = measure_generate(loaded.model, prompt, max_new_tokens=8, **options)
    with prune(loaded, method, question.text) as pruner:
        pruned = measured(loaded, pruner, prompt, max_new_tokens=8, **options)
    return Asked(question, (decoded(loaded, plain), decoded(loaded, pruned)), (plain, pruned), pruner.last)

"""The demo's work: an image, asked about with all visual tokens and with those that a method keeps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image
from torch import Tensor

from vlprune.evaluation.demo_scenes import DemoQuestion, DemoScene
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
from vlprune.record import Record


@dataclass(frozen=True)
class DemoAnswer:
    """One question, its answers with all tokens and with the method's, what both cost, and what the method kept."""

    question: DemoQuestion
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

    scene: DemoScene
    seen: Image.Image
    answers: list[DemoAnswer]

    def picture(self) -> dict[str, Any]:
        """The arguments of `show.save_picture`: a row for each question that is to be pictured."""
        from vlprune.show import picture_title

        rows = [answer for answer in self.answers if answer.question.pictured] or self.answers
        return {
            "image": self.seen,
            "records": [answer.record for answer in rows],
            "titles": [
                picture_title(
                    answer.question.text, answer.answers[1], f"{answer.record.after} of {answer.record.before} tokens"
                )
                for answer in rows
            ],
            "marks": [list(answer.question.marks) for answer in rows],
            "panel_titles": [_describe_record(answer.record, answer.question.asked) for answer in rows],
        }


def rank_asked(scores: Tensor, asked: Tensor) -> float:
    """How often a token that was asked about scores above another one, ties by half: the area under the ROC curve.

    >>> import torch
    >>> rank_asked(torch.tensor([0.9, 0.1, 0.5, 0.5]), torch.tensor([True, False, True, False]))
    0.875
    """
    gaps = scores[asked].double()[:, None] - scores[~asked].double()
    return float((gaps > 0).double().mean() + (gaps == 0).double().mean() / 2)


def _describe_record(record: Record, asked: Tensor) -> dict[str, str]:
    """Titles of panels: how well relevance finds what was asked about, and how many of its tokens were kept."""
    on_it = int(asked[record.kept.cpu()].sum())
    titles = {"kept": f"kept {record.after} of {record.before}, {on_it} of {int(asked.sum())} where asked"}
    if record.relevance is not None and asked.any():
        share = rank_asked(record.relevance.cpu(), asked)
        titles["relevance"] = f"relevance: asked beats {100 * share:.0f} % of the rest"
    return titles


def run_demo(
    loaded: LoadedModel, method: Method, scene: DemoScene, repeats: int, tick: Callable[[str], None] = lambda what: None
) -> Demo:
    """Ask all questions of the scene, with all tokens and with the method's; `tick` is told what is done next."""
    prompts = [prepare_inputs(loaded, scene.image, question.text) for question in scene.questions]
    answers = []
    for i, (question, prompt) in enumerate(zip(scene.questions, prompts)):
        tick(f"answering {i + 1} of {len(prompts)}")
        answers.append(_answer_both_ways(loaded, method, question, prompt, repeats=repeats, warmup=int(i == 0)))
    return Demo(scene, image_from_pixels(prompts[0]["pixel_values"][0], loaded.processor), answers)


def _answer_both_ways(
    loaded: LoadedModel, method: Method, question: DemoQuestion, prompt: dict[str, Any], **options: int
) -> DemoAnswer:
    """Answer with all tokens, then with the method's; `options` go to `measure_generate`."""
    plain = measure_generate(loaded.model, prompt, max_new_tokens=8, **options)
    with attach_pruner(loaded, method, question.text) as pruner:
        pruned = measure_answer(loaded, pruner, prompt, max_new_tokens=8, **options)
    answers = decode_answer(loaded, plain), decode_answer(loaded, pruned)
    return DemoAnswer(question, answers, (plain, pruned), pruner.last)

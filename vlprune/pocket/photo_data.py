"""Training and test pictures for the photo model: scenes, their questions, and which tokens are shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vlprune.pocket.photo_questions import CARD_COLOURS, THINGS, Question, ThingCounts, read_captions, read_photograph
from vlprune.pocket.photo_scenes import (
    GRID,
    PATCH,
    Scene,
    ask,
    card_questions,
    cells,
    draw_scene,
    random_scene,
    visible_things,
)


class Photographs(dict[str, Any]):
    """The photographs of a folder by file name, read when asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, name: str) -> Any:
        from PIL import Image

        with Image.open(self.folder / name) as picture:
            return picture.convert("RGB")


def pixels_of(scene: Scene, photographs: Photographs) -> Tensor:
    """(3, 336, 336) the bytes of the scene's picture."""
    return torch.from_numpy(np.array(draw_scene(scene, photographs))).permute(2, 0, 1)


def read_splits(captions: Path) -> dict[str, dict[str, Any]]:
    """What captions say of each photograph, by split, from Flickr8k's list of captions and the lists beside it."""
    said = read_captions(captions.read_text())
    splits = {}
    for split in ("train", "dev", "test"):
        names = (captions.parent / f"Flickr_8k.{split}Images.txt").read_text().split()
        splits[split] = {name: read_photograph(name, said[name]) for name in names if name in said}
    return splits


def visible_tokens(scene: Scene, rng: Random) -> Tensor:
    """(576,) which tokens a pattern leaves: a block, one around what was pasted, stripes, or scattered squares.

    The patterns belong to no method. They are there so that the LLM meets images with few tokens.
    """
    keep = torch.zeros(GRID, GRID, dtype=torch.bool)
    pasted = [card.box for card in scene.cards] + ([scene.inset_box] if scene.inset else [])
    kind = rng.choice(["around", "around", "block", "stripes", "squares"])
    if kind == "around" and pasted:
        left, top, right, bottom = (edge / PATCH for edge in rng.choice(pasted))
        margin = [rng.choice([0, 0, 0, 1, 2, 4]) for _ in range(4)]
        rows = slice(max(int(top) - margin[0], 0), math.ceil(bottom) + margin[1])
        keep[rows, max(int(left) - margin[2], 0) : math.ceil(right) + margin[3]] = True
    elif kind in ("around", "block"):
        tall, wide = rng.randrange(4, GRID + 1), rng.randrange(4, GRID + 1)
        row, column = rng.randrange(GRID - tall + 1), rng.randrange(GRID - wide + 1)
        keep[row : row + tall, column : column + wide] = True
    elif kind == "stripes":
        period = rng.randrange(2, 7)
        on = (torch.arange(GRID) + rng.randrange(period)) % period < max(1, round(period * rng.uniform(0.3, 0.7)))
        keep[:] = on[:, None] if rng.random() < 0.5 else on[None]
    else:
        size = rng.choice([1, 2, 3, 4])
        share, seed = rng.uniform(0.1, 0.7), rng.randrange(2**31)
        coarse = torch.rand(GRID // size, GRID // size, generator=torch.Generator().manual_seed(seed)) < share
        keep = coarse.repeat_interleave(size, 0).repeat_interleave(size, 1)
    if not keep.any():
        keep[GRID // 2, GRID // 2] = True
    return keep.flatten()


def answerable(questions: list[Question], seen: Tensor) -> list[Question]:
    """The questions that can still be answered from the tokens `seen`.

    What was pasted must be seen nearly whole; a pasted thing that is not seen at all is not there. Where nobody knows
    the place, more than a third of the picture must be seen.
    """
    left = []
    for question in questions:
        share = seen[cells(question.boxes)].float().mean() if question.boxes else seen.float().mean() * 2.6
        if share >= 0.85:
            left.append(question)
        elif question.boxes and share == 0 and question.kind == "existence":
            left.append(Question("existence", question.text, "no", question.about))
    return left


def places_to_look(questions: list[Question], rng: Random, chance: float) -> Tensor:
    """(Q, 576) which tokens each question sees: all, or with this chance those where its answer lies and a few others.

    Only a question that knows its place can have such a hint: it parts learning to read from learning to find. How
    many others are shown varies from none to nearly all.
    """
    look = torch.ones(len(questions), GRID * GRID, dtype=torch.bool)
    for row, question in zip(look, questions, strict=True):
        if question.boxes and rng.random() < chance:
            row[:] = False
            row[rng.sample(range(GRID * GRID), int((GRID * GRID) ** rng.random()) - 1)] = True
            row[cells(question.boxes)] = True
    return look


@dataclass
class Example:
    """One picture with its questions.

    `seen` (576,) tokens enter the LLM, of which question q sees `look` (Q, 576); `labels` say what is there (1), what
    is not (0) and what may be (−1).
    """

    pixels: Tensor
    seen: Tensor
    look: Tensor
    questions: list[Question]
    labels: Tensor


#: What a question can be about, as the text tower is trained on it.
CONCEPTS = {
    name: i for i, name in enumerate([*THINGS, *(f"{colour} card" for colour in CARD_COLOURS), "word", "number"])
}


def concept_labels(scene: Scene, facts: dict[str, Any]) -> Tensor:
    """(concepts,) 1 for what is in the scene, 0 for what is not, −1 for what may be."""
    present, unsure = visible_things(scene, facts)
    written = [f"{card.colour} card" for card in scene.cards]
    written += ["number" if card.text.isdigit() else "word" for card in scene.cards]
    labels = torch.zeros(len(CONCEPTS), dtype=torch.int8)
    labels[[CONCEPTS[name] for name in unsure]] = -1
    labels[[CONCEPTS[name] for name in [*present, *written]]] = 1
    return labels


@dataclass(frozen=True)
class Plan:
    """What the training pictures of a step are: `batch` a step; `captions` first steps that only describe.

    After these, the chance of a hint (`places_to_look`) falls from 1 to 0 in `hints` steps; every `patterns`-th step
    hides tokens by a pattern (0: none does).
    """

    batch: int
    captions: int
    hints: int
    patterns: int

    def hint_chance(self, step: int) -> float:
        """The share of questions that know their place and are told it.

        >>> [Plan(32, 100, 1000, 4).hint_chance(step) for step in (100, 600, 2000)]
        [1.0, 0.5, 0.0]
        """
        return max(0.0, 1 - (step - self.captions) / self.hints) if self.hints else 0.0


class TrainingSet(torch.utils.data.Dataset[Example]):
    """Endless training pictures; number i is always the same picture, whatever was drawn before it."""

    def __init__(self, folder: Path, facts: dict[str, Any], seed: int, plan: Plan) -> None:
        self.photographs, self.facts, self.seed, self.plan = Photographs(folder), facts, seed, plan
        self.names = sorted(facts)
        self.counts = ThingCounts(facts.values())
        self.order: tuple[int, list[str]] = (-1, [])

    def __len__(self) -> int:
        return 2**40

    def __getitem__(self, index: int) -> Example:
        epoch, place = divmod(index, len(self.names))
        if self.order[0] != epoch:
            self.order = (epoch, Random(f"{self.seed} {epoch}").sample(self.names, len(self.names)))
        rng, step = Random(f"{self.seed} {index}"), index // self.plan.batch
        name = self.order[1][place]
        only_caption = step < self.plan.captions
        hint = self.plan.hint_chance(step)
        cards = 0 if only_caption else rng.choice([1, 3, 6, 6] if hint else [0, 1, 1, 2, 3, 6])
        inset = not only_caption and rng.random() < 0.3
        scene = random_scene(name, self.names, rng, inset=inset, cards=cards, augment=True)
        questions = [] if only_caption else ask(scene, self.facts, self.counts, rng, existence=4, others=2)
        if scene.inset is None:
            caption = rng.choice(self.facts[name].captions)
            questions.insert(0, Question("caption", "describe the picture.", caption, ""))
        seen = torch.ones(GRID * GRID, dtype=torch.bool)
        every = self.plan.patterns
        if every and not only_caption and step % every == every - 1:
            pattern = visible_tokens(scene, rng)
            left = answerable(questions, pattern)
            if left:
                seen, questions, hint = pattern, left, 0.0
        look, labels = places_to_look(questions, rng, hint), concept_labels(scene, self.facts)
        return Example(pixels_of(scene, self.photographs), seen, look, questions, labels)


def unseen_scenes(
    facts: dict[str, Any], counts: ThingCounts, count: int, seed: int
) -> list[tuple[Scene, list[Question]]]:
    """Scenes of unseen photographs with questions: `count` each plain, with an inset, with one card, and with three."""
    names = sorted(facts)
    scenes = []
    for kind in ("plain", "inset", "card", "cards"):
        for i, name in enumerate(Random(f"{seed} {kind}").sample(names, min(count, len(names)))):
            rng = Random(f"{seed} {kind} {i}")
            cards = {"card": 1, "cards": 3}.get(kind, 0)
            made = random_scene(name, names, rng, inset=kind == "inset", cards=cards, augment=False)
            if kind in ("card", "cards"):
                asked = card_questions(made)[:2]
            else:
                asked = ask(made, facts, counts, rng, existence=2, others=2 if kind == "plain" else 0)
            scenes.append((made, asked))
    return scenes

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
    Scene,
    ask,
    card_questions,
    cells,
    draw_scene,
    random_scene,
    visible_things,
)

FEWEST, MOST = 16, 400  # tokens that a pattern leaves
NUMBERS = 0.65  # the share of training cards that carry a number: these are harder than words, and there are more


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
    said = read_captions(captions.read_text(encoding="utf-8", errors="replace"))
    splits = {}
    for split in ("train", "dev", "test"):
        names = (captions.parent / f"Flickr_8k.{split}Images.txt").read_text(encoding="utf-8", errors="replace").split()
        splits[split] = {name: read_photograph(name, said[name]) for name in names if name in said}
    return splits


def visible_tokens(scene: Scene, rng: Random) -> Tensor:
    """(576,) which tokens a pattern leaves: a block, one around what was pasted, stripes, or scattered squares.

    The patterns belong to no method. They are there so that the LLM meets images with few tokens: from 16 to 400, as
    often from 16 to 32 as from 200 to 400. What a pattern is around is left whole.
    """
    count = round(math.exp(rng.uniform(math.log(FEWEST), math.log(MOST))))
    pasted = [card.box for card in scene.cards] + ([scene.inset_box] if scene.inset else [])
    kind = rng.choice(["around", "block", "stripes", "squares", "squares"])
    noise = torch.rand(GRID, GRID, generator=torch.Generator().manual_seed(rng.randrange(2**31)))
    line = torch.arange(GRID)
    if kind == "around" and pasted:
        whole = cells([rng.choice(pasted)])
        rows, columns = torch.tensor(whole) // GRID, torch.tensor(whole) % GRID
        down, across = ((line[:, None] - places).abs().amin(1) for places in (rows, columns))
        far, count = torch.maximum(down[:, None], across[None]) + noise / 2, max(count, len(whole))
    elif kind in ("around", "block"):
        wide = math.exp(rng.uniform(-0.7, 0.7))  # a block's width by its height
        down, across = (line - rng.uniform(0, GRID - 1)).abs() * wide, (line - rng.uniform(0, GRID - 1)).abs()
        far = torch.maximum(down[:, None], across[None])
    elif kind == "stripes":
        away = (line + rng.randrange(GRID)) % rng.randrange(3, 7)
        far = (away[:, None] if rng.random() < 0.5 else away[None]) + noise
    else:
        size = rng.choice([2, 3, 4])
        far = noise[: GRID // size, : GRID // size].repeat_interleave(size, 0).repeat_interleave(size, 1)
    keep = torch.zeros(GRID * GRID, dtype=torch.bool)
    keep[far.flatten().argsort(stable=True)[:count]] = True
    return keep


def answerable(questions: list[Question], seen: Tensor) -> list[Question]:
    """The questions that are asked of the tokens `seen`.

    What is read must be seen nearly whole, and of colours, numbers and actions a third of the picture. Whether
    something is there is asked of any tokens, and the answer is that of the whole picture: "yes" is right as often as
    "no", so that few tokens are no sign of either. A model for which things were taken as absent where unseen said
    "no" to nearly all such questions with 64 tokens.
    """

    def is_asked(question: Question) -> bool:
        if question.kind == "existence":
            return True
        share = seen[cells(question.boxes)].float().mean() if question.boxes else seen.float().mean() * 2.6
        return bool(share >= 0.85)

    return [question for question in questions if is_asked(question)]


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

    After these, the chance of a hint (`places_to_look`) falls from 1 to 0 in `hints` steps; a share `patterns` of the
    steps, evenly spread, hides tokens by a pattern.
    """

    batch: int
    captions: int
    hints: int
    patterns: float

    def hint_chance(self, step: int) -> float:
        """The share of questions that know their place and are told it.

        >>> [Plan(32, 100, 1000, 0.4).hint_chance(step) for step in (100, 600, 2000)]
        [1.0, 0.5, 0.0]
        """
        return max(0.0, 1 - (step - self.captions) / self.hints) if self.hints else 0.0

    def hides(self, step: int) -> bool:
        """Whether the pictures of this step are seen through a pattern.

        >>> [Plan(32, 0, 1000, 0.4).hides(step) for step in range(5)]
        [False, False, True, False, True]
        """
        return step >= self.captions and int((step + 1) * self.patterns) > int(step * self.patterns)


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
        scene = random_scene(name, self.names, rng, inset=inset, cards=cards, augment=True, numbers=NUMBERS)
        questions = [] if only_caption else ask(scene, self.facts, self.counts, rng, existence=4, others=2)
        if scene.inset is None:
            caption = rng.choice(self.facts[name].captions)
            questions.insert(0, Question("caption", "describe the picture.", caption, ""))
        seen = torch.ones(GRID * GRID, dtype=torch.bool)
        if self.plan.hides(step):
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

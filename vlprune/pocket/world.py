"""The pocket world: scenes of coloured shapes with digits on them, and questions about them.

Everything follows from a seed and an index through `random.random()` alone, whose stream Python guarantees, so a
scene is the same on every machine and a split can be read from any index on. `vlprune.pocket.render` draws it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

SIZE = 192  # pixels a side
SHAPES = ("circle", "square", "triangle", "diamond", "star", "cross", "heart", "bar")
COLORS = ("red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
CELLS = ("top-left", "top", "top-right", "left", "center", "right", "bottom-left", "bottom", "bottom-right")
KINDS = ("exist", "color", "shape", "count", "digit", "where")
SEEDS = {"train": 1, "validation": 2, "test": 3}
MAX_THINGS = 12
RADIUS = (10.5, 22.0)

T = TypeVar("T")


class Dice(Random):
    """Random choices made from `random()` alone."""

    def below(self, n: int) -> int:
        """A whole number from 0 to n - 1."""
        return int(self.random() * n)

    def pick(self, items: Sequence[T]) -> T:
        """One of the items."""
        return items[self.below(len(items))]

    def between(self, low: float, high: float) -> float:
        """A number from low to high."""
        return low + (high - low) * self.random()


@dataclass(frozen=True)
class Thing:
    """One object of a scene: what it is, and where; `x`, `y`, `radius` in pixels, `angle` in radians."""

    shape: str
    color: str
    digit: int
    x: float
    y: float
    radius: float
    angle: float
    shade: float  # how much lighter or darker than its colour's name


@dataclass(frozen=True)
class Question:
    """A question, its answer, and the things that have to be seen for it (indices into `Scene.things`)."""

    kind: str
    text: str
    answer: str
    about: tuple[int, ...]


@dataclass(frozen=True)
class Scene:
    """The content of one image. `background` holds the numbers of its smooth backdrop, `name` its seed and index."""

    name: str
    things: tuple[Thing, ...]
    background: tuple[float, ...] = field(repr=False)


def scenes(seed: int | str, n: int, *, start: int = 0) -> list[Scene]:
    """Draw `n` scenes of a split ("train", "validation", "test") or of any seed, from index `start` on.

    >>> a, b = scenes("test", 2)
    >>> scenes("test", 1, start=1)[0] == b
    True
    >>> 3 <= len(a.things) <= 12
    True
    """
    if isinstance(seed, str):
        if seed not in SEEDS:
            raise ValueError(f"seed={seed!r}: a whole number, or one of {', '.join(SEEDS)}.")
        seed = SEEDS[seed]
    return [_draw_scene(seed, start + i) for i in range(n)]


def _draw_scene(seed: int, index: int) -> Scene:
    dice = Dice(f"scene {seed} {index}")
    wanted = 3 + dice.below(MAX_THINGS - 2)
    # crowded scenes hold smaller things; a theme makes some attribute common, so that there is something to count
    largest = RADIUS[1] if wanted <= 6 else 15.5 + (MAX_THINGS - wanted)
    theme = dice.pick((("shape", dice.pick(SHAPES)), ("color", dice.pick(COLORS)), ("none", "")))
    things: list[Thing] = []
    for _ in range(wanted):
        spot = _free_spot(dice, things, dice.between(RADIUS[0], largest))
        if spot is None:
            break
        shape, color = dice.pick(SHAPES), dice.pick(COLORS)
        if dice.random() < 0.4:
            shape, color = (
                theme[1] if theme[0] == "shape" else shape,
                theme[1] if theme[0] == "color" else color,
            )
        things.append(Thing(shape, color, dice.below(10), *spot, dice.between(-0.2, 0.2), dice.between(-1, 1)))
    # three channels of a grey tint, then four waves: direction x, y, phase, strength
    background = [dice.between(0.3, 0.65)] * 3
    background = [level + dice.between(-0.06, 0.06) for level in background]
    for _ in range(4):
        background += [dice.between(-0.06, 0.06), dice.between(-0.06, 0.06), dice.between(0, 6.283)]
        background += [dice.between(-0.07, 0.07)]
    return Scene(f"{seed}/{index}", tuple(things), tuple(background))


def _free_spot(dice: Dice, things: list[Thing], radius: float) -> tuple[float, float, float] | None:
    """x, y and radius of a thing that touches no other: the first try with room, else the roomiest, made smaller."""
    best = (0.0, 0.0, 0.0)
    for _ in range(24):
        x, y = dice.between(radius, SIZE - radius), dice.between(radius, SIZE - radius)
        room = min((((t.x - x) ** 2 + (t.y - y) ** 2) ** 0.5 - 1.15 * t.radius - 2 for t in things), default=SIZE)
        if room >= 1.15 * radius:
            return x, y, radius
        best = max(best, (room / 1.15, x, y))
    return (best[1], best[2], best[0]) if best[0] >= RADIUS[0] else None


def questions(scene: Scene, kinds: Sequence[str] = KINDS) -> list[Question]:
    """One question of each kind that can be asked about the scene, always the same ones.

    >>> for q in questions(scenes("test", 3)[2]):
    ...     print(q.kind, "|", q.text, "|", q.answer)  # doctest: +ELLIPSIS
    exist | is there a ...? | ...
    color | what color is the ...? | ...
    ...
    """
    for kind in kinds:
        if kind not in KINDS:
            raise ValueError(f"kinds={list(kinds)!r}: choose from {', '.join(KINDS)}, not {kind!r}.")
    dice = {kind: Dice(f"question {scene.name} {kind}") for kind in kinds}
    return [q for kind in kinds if (q := draw_question(dice[kind], scene, kind)) is not None]


def balanced_questions(split: str, per_kind: int) -> Iterator[tuple[Scene, list[Question]]]:
    """Scenes of a split with their questions, until every kind of question has been asked `per_kind` times.

    >>> rows = list(balanced_questions("test", 5))
    >>> sum(len(qs) for _, qs in rows)
    30
    """
    asked: Counter[str] = Counter()
    start = 0
    while any(asked[kind] < per_kind for kind in KINDS):
        (scene,) = scenes(split, 1, start=start)
        start += 1
        found = [q for q in questions(scene) if asked[q.kind] < per_kind]
        asked.update(q.kind for q in found)
        if found:
            yield scene, found


def draw_question(dice: Dice, scene: Scene, kind: str) -> Question | None:
    """Draw one question of a kind; None where every such question about the scene would be ambiguous."""
    return _ASK_BY_KIND[kind](dice, scene.things)


def draw_caption(dice: Dice, scene: Scene) -> str:
    """Draw a text for contrastive training: a list of some of the scene's things, or a question about one."""
    if dice.random() < 0.3:
        question = draw_question(dice, scene, dice.pick(("color", "shape", "digit", "where")))
        if question is not None:
            return question.text
    chosen = [dice.pick(scene.things) for _ in range(1 + dice.below(3))]
    return " and ".join(
        f"a {t.color} {t.shape}" + (f" with a {t.digit}" if dice.random() < 0.5 else "") for t in chosen
    )


def vocabulary() -> list[str]:
    """Every word that questions, answers and captions use."""
    asking = ["is", "there", "a", "what", "color", "the", "shape", "thing", "things", "how", "many", "are"]
    asking += ["digit", "on", "where", "with", "and", "?", "yes", "no"]
    return [*asking, *map(str, range(10)), *COLORS, *SHAPES, *(shape + "s" for shape in SHAPES), *CELLS]


def _ask_existence(dice: Dice, things: Sequence[Thing]) -> Question | None:
    there = {(t.color, t.shape) for t in things}
    if dice.random() < 0.5:
        color, shape = dice.pick(sorted(there))
    else:  # as hard as can be: the colour is there and the shape is there, but not together
        hard = sorted({(t.color, u.shape) for t in things for u in things} - there)
        color, shape = dice.pick(hard) if hard else (dice.pick(COLORS), dice.pick(SHAPES))
    about = tuple(i for i, t in enumerate(things) if t.color == color or t.shape == shape)
    return Question("exist", f"is there a {color} {shape}?", "yes" if (color, shape) in there else "no", about)


def _ask_color(dice: Dice, things: Sequence[Thing]) -> Question | None:
    found = _pick_unique(dice, things, (("shape",), ("shape", "digit")))
    if found is None:
        return None
    i, by = found
    thing = things[i]
    which = thing.shape if by == ("shape",) else f"{thing.shape} with a {thing.digit}"
    return Question("color", f"what color is the {which}?", thing.color, (i,))


def _ask_shape(dice: Dice, things: Sequence[Thing]) -> Question | None:
    found = _pick_unique(dice, things, (("color",), ("color", "digit")))
    if found is None:
        return None
    i, by = found
    thing = things[i]
    which = f"{thing.color} thing" + ("" if by == ("color",) else f" with a {thing.digit}")
    return Question("shape", f"what shape is the {which}?", thing.shape, (i,))


def _ask_count(dice: Dice, things: Sequence[Thing]) -> Question | None:
    by_shape = dice.random() < 0.5
    values: Sequence[str] = [t.shape if by_shape else t.color for t in things]
    value = dice.pick((SHAPES if by_shape else COLORS) if dice.random() < 0.15 else values)
    about = tuple(i for i, v in enumerate(values) if v == value)
    if len(about) > 9:  # answers are one word, and numbers one digit
        return None
    what = f"{value}s" if by_shape else f"{value} things"
    return Question("count", f"how many {what} are there?", str(len(about)), about)


def _ask_digit(dice: Dice, things: Sequence[Thing]) -> Question | None:
    found = _pick_unique(dice, things, (("color", "shape"),))
    if found is None:
        return None
    thing = things[found[0]]
    return Question("digit", f"what digit is on the {thing.color} {thing.shape}?", str(thing.digit), (found[0],))


def _ask_position(dice: Dice, things: Sequence[Thing]) -> Question | None:
    third, margin = SIZE / 3, 5
    clear = [all(abs(p - edge) > margin for p in (t.x, t.y) for edge in (third, 2 * third)) for t in things]
    found = _pick_unique(dice, things, (("color", "shape"),), allowed=clear)
    if found is None:
        return None
    thing = things[found[0]]
    cell = CELLS[3 * int(thing.y // third) + int(thing.x // third)]
    return Question("where", f"where is the {thing.color} {thing.shape}?", cell, (found[0],))


def _pick_unique(
    dice: Dice,
    things: Sequence[Thing],
    descriptions: Sequence[tuple[str, ...]],
    allowed: Sequence[bool] | None = None,
) -> tuple[int, tuple[str, ...]] | None:
    """Pick a thing that some description (a set of attributes) tells from all others: its index and description."""
    options: dict[int, tuple[str, ...]] = {}
    for description in descriptions:
        values = [tuple(getattr(t, attribute) for attribute in description) for t in things]
        count = Counter(values)
        for i, value in enumerate(values):
            if count[value] == 1 and (allowed is None or allowed[i]):
                options.setdefault(i, description)
    return dice.pick(sorted(options.items())) if options else None


_ASK_BY_KIND = {
    "exist": _ask_existence,
    "color": _ask_color,
    "shape": _ask_shape,
    "count": _ask_count,
    "digit": _ask_digit,
    "where": _ask_position,
}

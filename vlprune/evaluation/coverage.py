"""What methods keep of photographs: which things still have a token, and how well the kept tokens stand for the rest.

There is no LLM, and nothing is answered. A question is about a class of things, and is embedded as the class looks:
the mean token on things of that class in all *other* photographs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from vlprune.errors import UserError
from vlprune.evaluation.photographs import Photograph, size_of, tokens_on
from vlprune.evaluation.run_folder import RunFolder
from vlprune.evaluation.vision_tower import VisionTower
from vlprune.methods import Method, Random, get_method, list_methods
from vlprune.methods.in_llm import split_stages
from vlprune.types import Query, Selection, TokenView

#: What a line in the run folder says of one photograph; see `measure_coverage`.
CoverageLine = dict[str, Any]


@dataclass
class CoverageRun:
    """A tower, the photographs to look at, the budgets, and the folder that keeps what was measured.

    `methods`, by name and then by budget, are those to compare; if there are none, all that need no LLM.
    `tick(name, count)` is called as photographs are done; `expect(count)` says how many more there will be.
    """

    tower: VisionTower
    photographs: list[Photograph]
    run_folder: RunFolder
    keep: tuple[int | float, ...]
    batch: int = 8
    methods: Mapping[str, Mapping[str, Method]] = field(default_factory=dict)
    seed: int = 0
    tick: Callable[[str, int], None] = field(default=lambda name, count: None)
    expect: Callable[[int], None] = field(default=lambda count: None)

    def encode(self) -> list[TokenView]:
        """The tokens of each photograph, standardised over all photographs (see `standardise`)."""
        self.run_folder.save_device(self.tower.model.device)
        self.expect(len(self.photographs))
        views: list[TokenView] = []
        for start in range(0, len(self.photographs), self.batch):
            some = self.photographs[start : start + self.batch]
            view = self.tower.encode([one.image() for one in some])
            views += [_row(view, i) for i in range(len(some))]
            self.tick("encoding photographs", len(some))
        return standardise(views)


@dataclass(frozen=True)
class AskedPhotograph:
    """A photograph's tokens, what is on it, and the questions about it.

    `on` (regions, n) says which tokens lie on which region, `sizes` how large each is. `classes` are asked about, one a
    question; `questions` (q, d) are what they look like elsewhere, `wrong` (q, d) what other classes look like.
    """

    number: int
    photograph: Photograph
    view: TokenView
    on: Tensor
    sizes: tuple[str, ...]
    classes: tuple[str, ...]
    questions: Tensor
    wrong: Tensor

    @property
    def things(self) -> list[int]:
        """The regions that are things."""
        return [i for i, region in enumerate(self.photograph.regions) if region.is_thing]

    @property
    def stuff(self) -> list[int]:
        """The regions that are stuff."""
        return [i for i, region in enumerate(self.photograph.regions) if not region.is_thing]

    @property
    def asked(self) -> list[tuple[int, int]]:
        """(question, region) of each thing that is asked about."""
        regions = self.photograph.regions
        return [(q, i) for q, name in enumerate(self.classes) for i in self.things if regions[i].name == name]


def _row(view: TokenView, i: int) -> TokenView:
    """The view of image `i` alone."""
    tensors = {name: getattr(view, name) for name in ("features", "tower", "attention", "keys")}
    return replace(view, **{name: value[i : i + 1] for name, value in tensors.items() if value is not None})


def standardise(views: Sequence[TokenView]) -> list[TokenView]:
    """The same tokens with each channel's mean over all of them taken off and its deviation divided by.

    A few channels of a tower's hidden states are large whatever the photograph shows, and cosines would be theirs. A
    model's projector learns to undo that; here there is none.
    """
    every = torch.cat([view.features[0] for view in views])
    mean, deviation = every.mean(0), every.std(0).clamp(min=1e-6)
    scaled = [(view.features - mean) / deviation for view in views]
    return [replace(view, features=tokens, tower=tokens) for view, tokens in zip(views, scaled)]


def ask_photographs(photographs: Sequence[Photograph], views: Sequence[TokenView], seed: int) -> list[AskedPhotograph]:
    """The photographs with a question about each class of things on them that other photographs show too.

    Those without any question are left out. A wrong question is about a class that is not on the photograph, drawn
    from `seed`, or, where all are on it, about another one.
    """
    covers = [one.cover(view.grid) for one, view in zip(photographs, views)]
    on = [tokens_on(cover) for cover in covers]
    sums: dict[str, dict[int, tuple[Tensor, int]]] = {}
    for i, (one, view) in enumerate(zip(photographs, views)):
        for name in dict.fromkeys(region.name for region in one.regions if region.is_thing):
            regions = [j for j, region in enumerate(one.regions) if region.is_thing and region.name == name]
            own = on[i][regions].any(0)
            sums.setdefault(name, {})[i] = (view.features[0, own].sum(0), int(own.sum()))
    shown = sorted(name for name, found in sums.items() if len(found) > 1)
    if len(shown) < 2:
        raise UserError("--data: the photographs must show two classes of things at least, each on two photographs.")
    generator = torch.Generator().manual_seed(seed)
    found = []
    for i, (one, view) in enumerate(zip(photographs, views)):
        classes = tuple(name for name in shown if i in sums[name])
        if not classes:
            continue
        wrong = []
        for name in classes:
            others = [other for other in shown if i not in sums[other]] or [other for other in shown if other != name]
            wrong.append(others[int(torch.randint(len(others), (), generator=generator))])
        sizes = tuple(size_of(float(cover.mean())) for cover in covers[i])
        questions, controls = (torch.stack([_prototype(sums[n], i) for n in names]) for names in (classes, wrong))
        found.append(AskedPhotograph(i, one, view, on[i], sizes, classes, questions, controls))
    return found


def _prototype(sums: Mapping[int, tuple[Tensor, int]], left_out: int) -> Tensor:
    """(d,) the mean token of a class, from the sums and counts of all photographs but one."""
    rest = [found for i, found in sums.items() if i != left_out]
    return torch.stack([total for total, _ in rest]).sum(0) / sum(count for _, count in rest)


def methods_without_llm() -> list[str]:
    """The names of the methods that choose before the LLM."""
    return [name for name in list_methods() if why_not_without_llm(get_method(name)) is None]


def why_not_without_llm(method: Method, attention: bool = True) -> str | None:
    """Why a method cannot choose by a vision tower alone, which may show its attention; None if it can."""
    if split_stages(method)[1] is not None:
        return "it chooses inside the LLM, and here is none."
    return None if attention or not method.needs_attention else "the tower's attention cannot be computed again."


def select_tokens(method: Method, one: AskedPhotograph, questions: Tensor, seed: int = 0) -> Selection:
    """What a method keeps of a photograph: a row for each question (q, d), or one row if it looks at none."""
    if isinstance(method, Random):
        method = replace(method, seed=method.seed + seed * 1_000_000 + one.number)
    if not method.reads_question:
        return method.select(one.view, None)
    view = one.view
    tensors = {name: getattr(view, name) for name in ("features", "tower", "attention", "keys")}
    many: dict[str, Any] = {
        name: value.expand(len(questions), *value.shape[1:]) for name, value in tensors.items() if value is not None
    }
    view = replace(view, **many)
    sign = getattr(method, "sign", None) or 1
    return method.select(view, Query(view.features, questions[:, None], sign, "prototype", one.classes))


def measure_coverage(one: AskedPhotograph, selection: Selection) -> CoverageLine:
    """What a selection leaves of a photograph.

    `asked` says of each (question, thing) asked about whether the thing keeps a token; `all` and `stuff` of each thing
    and each region of stuff, for which share of the questions it keeps one; `explained` is the mean cosine of dropped
    tokens to the nearest of what is kept.
    """
    rows, n = len(selection.kept), one.view.n
    kept = torch.zeros(rows, n, dtype=torch.bool).scatter_(1, selection.kept, True)
    seen = (kept[:, None] & one.on).any(-1)
    unit = torch.nn.functional.normalize(one.view.features[0], dim=1)
    explained = []
    for row in range(rows):
        given = selection.embeddings
        stay = unit[selection.kept[row]] if given is None else torch.nn.functional.normalize(given[row], dim=1)
        explained.append(float((unit[~kept[row]] @ stay.T).amax(1).mean()))
    share = seen.float().mean(0)
    return {
        "q": one.number,
        "asked": [int(seen[min(q, rows - 1), i]) for q, i in one.asked],
        "all": [round(float(share[i]), 4) for i in one.things],
        "stuff": [round(float(share[i]), 4) for i in one.stuff],
        "explained": round(sum(explained) / rows, 5),
    }


def measure_methods(
    run: CoverageRun, asked: Sequence[AskedPhotograph], cells: Mapping[str, Method], wrong: bool = False
) -> dict[str, list[CoverageLine]]:
    """Each method's lines, one a photograph; what the folder has is not measured again.

    With `wrong`, methods get the wrong question.
    """
    run.run_folder.save_methods(cells)
    known = {name: {line["q"]: line for line in run.run_folder.read_answers(name)} for name in cells}
    run.expect(sum(one.number not in known[name] for name in cells for one in asked))
    for one in asked:
        for name, method in cells.items():
            if one.number in known[name]:
                continue
            selection = select_tokens(method, one, one.wrong if wrong else one.questions, run.seed)
            known[name][one.number] = measure_coverage(one, selection)
            run.run_folder.append_answers(name, [known[name][one.number]])
            run.tick(name, 1)
    return {name: [known[name][one.number] for one in asked] for name in cells}


def area_under_curve(scores: Tensor, inside: Tensor, outside: Tensor) -> float | None:
    """How often a token inside scores higher than one outside; ties count half. None where there are not both.

    >>> scores = torch.tensor([3.0, 2.0, 2.0, 1.0])
    >>> area_under_curve(scores, torch.tensor([True, True, False, False]), torch.tensor([False, False, True, True]))
    0.875
    """
    high, low = scores[inside], scores[outside]
    if not len(high) or not len(low):
        return None
    return float((high[:, None] > low).float().mean() + (high[:, None] == low).float().mean() / 2)

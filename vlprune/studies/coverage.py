"""What is kept of photographs: things, stuff, and how well kept tokens stand for dropped ones; no LLM is asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlprune.errors import UserError
from vlprune.evaluation.accuracy import curves_to_draw, percent_with_interval
from vlprune.evaluation.coverage import (
    AskedPhotograph,
    CoverageLine,
    CoverageRun,
    area_under_curve,
    ask_photographs,
    measure_methods,
    methods_without_llm,
    select_tokens,
    why_not_without_llm,
)
from vlprune.evaluation.photographs import SIZES
from vlprune.evaluation.plots import Point, plot_curves
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import bootstrap_interval, bootstrap_means
from vlprune.methods import Method, get_method
from vlprune.record import Record
from vlprune.selection import graph_scores, relevance_scores
from vlprune.show.picture import draw_contact_sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NEEDS, QUESTIONS, KEEP = "photographs", (200, 8), (192, 128, 64, 32, 16)
TAKES_METHODS = True  # --methods says what is compared, in place of all that need no LLM
PICTURES = 3
SEEN = "A thing is seen if a kept token lies on it: the thing covers half of the token's patch, or, where it covers no "
SEEN += "patch by half, that patch most."
INTERVALS = "95 % intervals: bootstrap over photographs."
MERGED = "A merged token counts where it stands in the prompt."
SIZE_WORDS = "Small: up to 1 % of the photograph; medium: up to 10 %; large: more."

#: A value for each of some things, regions or photographs, and the photograph that each is on.
Values = tuple[list[float], list[str]]
#: Means with intervals, by cell (a method at a budget) and by what is counted.
Scores = Mapping[str, Mapping[str, Any]]


def study(run: CoverageRun) -> StudyResult:
    """Shares of asked things, of all things and of stuff that keep a token, by every method that needs no LLM."""
    budgets = _budgets(run)
    asked = ask_photographs(run.photographs, run.encode(), run.seed)
    methods = _methods(run, budgets, asked[0].view.attention is not None)
    names = list(dict.fromkeys(cell.rpartition("@")[0] for cell in methods))
    lines = measure_methods(run, asked, methods)
    asking = [name for name in names if methods[f"{name}@{budgets[0]}"].reads_question]
    controls = {f"{name}, wrong question@{k}": methods[f"{name}@{k}"] for name in asking for k in budgets}
    lines |= measure_methods(run, asked, controls, wrong=True)
    scores = {cell: _score(asked, found) for cell, found in lines.items()}
    curves = score_curves(asked)
    what = _describe(run, asked)
    shown = {title: key for title, key in SHARES.items() if scores[f"{names[0]}@{budgets[0]}"][key] is not None}
    tables = [_share_table(title, key, names, budgets, scores, what) for title, key in shown.items()]
    tables.append(_wrong_question_table(asking, budgets, scores))
    tables += [_size_table(keep, names, scores) for keep in budgets]
    tables.append(_curves_table(curves))
    keep = budgets[len(budgets) // 2]
    pictures = _pictures(run, asked, {name: methods[f"{name}@{keep}"] for name in names}, keep)
    figures = {"coverage": _figure(methods, asked[0].view.n, scores), **pictures}
    data = {"photographs": len(asked), "questions": sum(len(one.classes) for one in asked)}
    return StudyResult("Coverage of photographs", tables, figures, {**data, "scores": scores, "auc": curves})


def _budgets(run: CoverageRun) -> list[int | float]:
    """The budgets that are fewer than all tokens."""
    n = run.tower.grid[0] * run.tower.grid[1]
    found = [keep for keep in run.keep if isinstance(keep, float) or keep < n]
    if not found or (len(found) < len(run.keep) and tuple(run.keep) != KEEP):
        raise UserError(f"--keep {','.join(map(str, run.keep))}: the tower gives {n} tokens, so choose fewer.")
    return found


def _methods(run: CoverageRun, budgets: Sequence[int | float], attention: bool) -> dict[str, Method]:
    """The methods by cell, which is a method at a budget; those that cannot run here are saved with the reason."""
    said = run.methods or {name: {str(k): get_method(name, keep=k) for k in budgets} for name in methods_without_llm()}
    refused = {name: why_not_without_llm(next(iter(own.values())), attention) for name, own in said.items()}
    reasons = {name: reason for name, reason in refused.items() if reason is not None}
    run.run_folder.save_refused(said, reasons)
    for name, own in run.methods.items():
        if name in reasons:
            raise UserError(f"--methods {name}: {reasons[name]}")
        if missing := [str(keep) for keep in budgets if str(keep) not in own]:
            raise UserError(
                f"--methods {name}: it keeps {', '.join(own)}, but --keep asks for {', '.join(missing)} too."
            )
    return {f"{name}@{keep}": said[name][str(keep)] for name in said if name not in reasons for keep in budgets}


def _describe(run: CoverageRun, asked: Sequence[AskedPhotograph]) -> str:
    """How much was looked at, in one sentence."""
    rows, columns = run.tower.grid
    questions, things = sum(len(one.classes) for one in asked), sum(len(one.things) for one in asked)
    regions = sum(len(one.stuff) for one in asked)
    return (
        f"{len(asked)} photographs of {rows} x {columns} tokens, {questions} questions, {things} things, {regions} "
        "regions of stuff."
    )


#: The titles of tables, and which values of a line they show.
SHARES = {
    "Asked things that are seen, %": "asked",
    "All things that are seen, %": "all",
    "Regions of stuff that are seen, %": "stuff",
    "Cosine of a dropped token to the nearest kept one, x 100": "explained",
}


def _values(
    asked: Sequence[AskedPhotograph], lines: Sequence[CoverageLine], key: str, size: str | None = None
) -> Values:
    """The values of that key, of things of that size alone if one is said."""
    values: list[float] = []
    images: list[str] = []
    for one, line in zip(asked, lines):
        if key == "explained":
            values.append(line[key])
            images.append(one.photograph.name)
            continue
        regions = {"asked": [i for _, i in one.asked], "all": one.things, "stuff": one.stuff}[key]
        own = [value for i, value in zip(regions, line[key]) if size is None or one.sizes[i] == size]
        values += own
        images += [one.photograph.name] * len(own)
    return values, images


def _mean(found: Values) -> dict[str, Any] | None:
    """The mean of values and its interval; None where there are none."""
    values, images = found
    if not values:
        return None
    interval = bootstrap_interval(bootstrap_means([values], images)[:, 0], images, (0, 1))
    return {"mean": sum(values) / len(values), "interval": interval, "count": len(values)}


def _cell(mean: Mapping[str, Any] | None) -> str:
    """A mean with its interval, in percent."""
    return "-" if mean is None else percent_with_interval(mean["mean"], mean["interval"])


def _score(asked: Sequence[AskedPhotograph], lines: Sequence[CoverageLine]) -> dict[str, Any]:
    """All means of a cell, in all and by size."""
    found = {key: _mean(_values(asked, lines, key)) for key in SHARES.values()}
    for key in ("asked", "all"):
        found |= {f"{key}, {size}": _mean(_values(asked, lines, key, size)) for size in SIZES}
    return found


def _share_table(
    title: str, key: str, names: Sequence[str], budgets: Sequence[int | float], scores: Scores, what: str
) -> ResultTable:
    rows = [[name, *(_cell(scores[f"{name}@{keep}"][key]) for keep in budgets)] for name in names]
    note = f"{what} {MERGED if key == 'explained' else SEEN} {INTERVALS}"
    return ResultTable(title, ["method", *map(str, budgets)], rows, note)


def _wrong_question_table(asking: Sequence[str], budgets: Sequence[int | float], scores: Scores) -> ResultTable:
    rows = [[name, *(_cell(scores[f"{name}, wrong question@{k}"]["asked"]) for k in budgets)] for name in asking]
    note = (
        "The same things, but the method was asked about a class that is not on the photograph: what is left of its "
        "lead over random tokens is not owed to the question."
    )
    title = "Asked things that are seen after a wrong question, %"
    return ResultTable(title, ["method", *map(str, budgets)], rows, note)


def _size_table(keep: int | float, names: Sequence[str], scores: Scores) -> ResultTable:
    columns = [f"{key}, {size}" for key in ("asked", "all") for size in SIZES]
    rows = [[name, *(_cell(scores[f"{name}@{keep}"][column]) for column in columns)] for name in names]
    first = scores[f"{names[0]}@{keep}"]
    counts = [f"{(first[f'all, {size}'] or {'count': 0})['count']} {size}" for size in SIZES]
    note = f"{SIZE_WORDS} There are {', '.join(counts)} things."
    return ResultTable(f"By size of thing, keeping {keep}, %", ["method", *columns], rows, note)


def score_curves(asked: Sequence[AskedPhotograph]) -> dict[str, dict[str, Any]]:
    """How well scores tell the tokens of things from others: areas under the ROC curve, in all and by size.

    Low redundancy and attention are held against all things, relevance against those that are asked about; tokens
    outside are those on no thing, or on none that is asked about. One value a photograph, its questions' mean.
    """
    found: dict[str, dict[str, Any]] = {}
    for name, (values_of, by_question) in _SCORES.items():
        values: dict[str, Values] = {size: ([], []) for size in ("all", *SIZES)}
        for one in asked:
            scores = values_of(one)
            if scores is None:
                continue
            for size, (areas, images) in values.items():
                own = [a for a in _areas(one, scores, by_question, size) if a is not None]
                if own:
                    areas.append(sum(own) / len(own))
                    images.append(one.photograph.name)
        found[name] = {size: _mean(both) for size, both in values.items()}
    return {name: one for name, one in found.items() if one["all"] is not None}


def _areas(one: AskedPhotograph, scores: Tensor, by_question: bool, size: str) -> Iterable[float | None]:
    """The areas of one photograph: one for each question, or one for all its things."""
    groups: dict[int, list[int]] = {}
    for q, i in one.asked if by_question else [(0, i) for i in one.things]:
        groups.setdefault(q, []).append(i)
    for q, regions in groups.items():
        chosen = [i for i in regions if size in ("all", one.sizes[i])]
        if chosen:
            yield area_under_curve(scores[q], one.on[chosen].any(0), ~one.on[regions].any(0))


def _relevance(questions: Tensor, one: AskedPhotograph) -> Tensor:
    """(q, n) the relevance of the tokens to each question."""
    return relevance_scores(one.view.features.expand(len(questions), -1, -1), questions[:, None])


#: Scores (rows, n) of a photograph's tokens, and whether there is a row for each question.
_SCORES: dict[str, tuple[Callable[[AskedPhotograph], Tensor | None], bool]] = {
    "low redundancy": (lambda one: -graph_scores(one.view.features), False),
    "attention in the tower": (lambda one: one.view.attention, False),
    "relevance": (lambda one: _relevance(one.questions, one), True),
    "relevance to a wrong question": (lambda one: _relevance(one.wrong, one), True),
}


def _curves_table(curves: Mapping[str, Mapping[str, Any]]) -> ResultTable:
    rows = []
    for name, found in curves.items():
        means = [found[size] for size in ("all", *SIZES)]
        ends = [f" [{one['interval'][0]:.2f}, {one['interval'][1]:.2f}]" if one else "" for one in means]
        rows.append([name, *(f"{one['mean']:.2f}{end}" if one else "-" for one, end in zip(means, ends))])
    note = f"Area under the ROC curve; 0.5 is chance. Relevance against asked things, others against all. {SIZE_WORDS}"
    return ResultTable("Do scores point at things?", ["score", "all things", *SIZES], rows, note)


def _figure(methods: Mapping[str, Method], n: int, scores: Scores) -> Figure:
    curves: dict[str, list[Point]] = {}
    for cell, method in methods.items():
        one = scores[cell]["asked"]
        low, high = (100 * end for end in one["interval"])
        curves.setdefault(cell.rpartition("@")[0], []).append((method.count(n), 100 * one["mean"], low, high))
    drawn, note = curves_to_draw(curves)
    title = "Asked things that are seen: a kept token lies on them"
    x = "visual tokens kept (log scale); bars are 95 % intervals"
    return plot_curves(drawn, flat={}, x=x, y="asked things that are seen, %", title=title, note=note)


def _pictures(
    run: CoverageRun, asked: Sequence[AskedPhotograph], methods: Mapping[str, Method], keep: int | float
) -> dict[str, Figure]:
    """What each method keeps of a few photographs, evenly chosen, for the first question about each."""
    step = max(1, len(asked) // PICTURES)
    found = {}
    for number, one in enumerate(asked[::step][:PICTURES], start=1):
        records = {name: _record(method, one, run.seed) for name, method in methods.items()}
        title = f"{one.photograph.name}, asked about: {one.classes[0]}; {keep} of {one.view.n} tokens"
        found[f"kept-{number}"] = draw_contact_sheet(one.photograph.image(), records, title=title)
    return found


def _record(method: Method, one: AskedPhotograph, seed: int) -> Record:
    """What a method keeps for the photograph's first question."""
    chosen = select_tokens(method, one, one.questions[:1], seed)
    scores = {"redundancy": chosen.redundancy, "relevance": chosen.relevance, "ranking": chosen.scores}
    kept = chosen.kept[0].sort().values
    given: dict[str, Any] = {name: value[0] for name, value in scores.items() if value is not None}
    return Record(kept, one.view.n, len(torch.unique(kept)), one.view.grid, **given)

"""What the paper reports beside what a run found here: the same direction, or not.

What "direction" means is said for each study: mostly the sign of a difference, as in Script less another method. The
sizes cannot agree, since model and questions are others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from vlprune.evaluation.result import PAPER_TITLE, ResultTable
from vlprune.studies.paper import ALL_TOKENS, PaperTable, table, tables

if TYPE_CHECKING:  # it imports torch
    from vlprune.evaluation.answers import Evaluation

Data = Mapping[str, Any]
TURN = 15  # the Manhattan distance from which the paper sees similarity rise again
CAVEAT = "Only the direction is compared, not the size, and chance is not weighed."


class Beside(NamedTuple):
    """A quantity in the paper and here; `same` is None where nothing moves here."""

    quantity: str
    paper: str
    here: str
    same: bool | None


class Comparison(NamedTuple):
    """How a study is compared: what the paper's set-up was, what counts as the same direction, and the rows."""

    setup: str
    direction: str
    rows: Callable[[Data], Sequence[Beside]]


def beside_paper(study: str, data: Data, here: str) -> list[ResultTable]:
    """The table "paper, here, same direction?" of a study's data, in a list; none where there is nothing to compare.

    `here` says what was run: model and questions.

    >>> found = {"192": {"share": 0.4, "chance": 1 / 3}, "16": {"share": 0.1, "chance": 1 / 36}}
    >>> print(beside_paper("overlap", found, "pocket, 12 questions")[0].to_markdown())   # doctest: +ELLIPSIS
    ### Beside the paper
    <BLANKLINE>
    | quantity | paper | here | same direction? |
    | --- | ---: | ---: | --- |
    | both keep, less chance, at 192 | +15.2 | +6.7 | yes |
    | both keep, less chance, at 16 | +8.2 | +7.2 | yes |
    | share at 192 less that at 16 | +37.5 | +30.0 | yes |
    <BLANKLINE>
    Paper: ...
    """
    if study not in COMPARISONS:
        return []
    setup, direction, find_rows = COMPARISONS[study]
    found = find_rows(data)
    if not found:
        return []
    words = {True: "yes", False: "no", None: "no difference here"}
    rows = [[one.quantity, one.paper, one.here, words[one.same]] for one in found]
    note = f"Paper: {setup}. Here: {here}. {direction} {CAVEAT}"
    return [ResultTable(PAPER_TITLE, ["quantity", "paper", "here", "same direction?"], rows, note)]


def describe_run(evaluation: Evaluation) -> str:
    """What was run, in words: model, questions and images."""
    asked = evaluation.questions
    images = len({question.image_name for question in asked})
    world = "drawn scenes" if evaluation.has_scenes else "questions of a file"
    return f"{evaluation.loaded.name}, {world}, {len(asked):,} questions about {images:,} images"


def difference(quantity: str, paper: float, here: float, digits: int = 1) -> Beside:
    """Two differences, whose direction is their sign.

    >>> difference("Script less random", 3.21, -0.04)
    Beside(quantity='Script less random', paper='+3.2', here='-0.0', same=False)
    >>> difference("Script less random", 3.21, 0.0).same is None
    True
    """
    same = None if here == 0 else (paper > 0) == (here > 0)
    return Beside(quantity, f"{paper:+.{digits}f}", f"{here:+.{digits}f}", same)


def _points(scores: Data, a: str, b: str) -> float:
    """How many points more of the right answers of all tokens `a` keeps than `b`."""
    return 100 * (scores[a]["relative"] - scores[b]["relative"])


def _ablation(data: Data) -> list[Beside]:
    scores, paper = data["scores"], table("ablation")
    keep = min((cell.rpartition("@")[2] for cell in scores if "@" in cell), key=float)
    if scores[ALL_TOKENS]["relative"] is None:
        return []
    steps = {
        "GSP alone": ("GSP", "none (random)"),
        "QCRS alone": ("QCRS", "none (random)"),
        "GSP added to QCRS": ("GSP + QCRS", "QCRS"),
        "DPP added to QCRS": ("QCRS + DPP", "QCRS"),
        "GSP added to QCRS + DPP": ("GSP + QCRS + DPP", "QCRS + DPP"),
    }
    return [
        difference(
            f"{name}, at {keep}",
            paper.value(after, "relative") - paper.value(before, "relative"),
            _points(scores, f"{after}@{keep}", f"{before}@{keep}"),
            2,
        )
        for name, (after, before) in steps.items()
    ]


def _graph(data: Data) -> list[Beside]:
    paper, rows = table("graph"), []
    for keep, found in data.items():
        speedup = found["exhaustive"]["seconds"] / found["bipartite"]["seconds"]
        printed = f"{paper.value('bipartite', 'speedup'):.2f}×"
        rows.append(Beside("bipartite faster than exhaustive", printed, f"{speedup:.2f}×", speedup > 1))
        agree = [f"{paper.value(name, 'iou'):.2f}" for name in ("bipartite", "random tokens")]
        mine = [found[name]["iou"] for name in ("bipartite", "random tokens")]
        here = f"{mine[0]:.2f} ({mine[1]:.2f})"
        rows.append(Beside("IoU, bipartite (random tokens)", f"{agree[0]} ({agree[1]})", here, mine[0] > mine[1]))
        for other in ("exhaustive", "random tokens"):
            printed_gap = paper.value("bipartite", "pope") - paper.value(other, "pope")
            gap = 100 * (found["bipartite"]["accuracy"] - found[other]["accuracy"])
            rows.append(difference(f"right, bipartite less {other}, at {keep}", printed_gap, gap, 2))
    return rows


def _overlap(data: Data) -> list[Beside]:
    paper, rows = table("overlap"), []
    budgets = [keep for keep in data if float(keep) in paper.budgets]
    for keep in budgets:
        printed = paper.value("script", "mean", float(keep)) - 100 * float(keep) / paper.tokens
        here = 100 * (data[keep]["share"] - data[keep]["chance"])
        rows.append(difference(f"both keep, less chance, at {keep}", printed, here))
    if len(budgets) > 1:
        most, least = max(budgets, key=float), min(budgets, key=float)
        printed = paper.value("script", "mean", float(most)) - paper.value("script", "mean", float(least))
        here = 100 * (data[most]["share"] - data[least]["share"])
        rows.append(difference(f"share at {most} less that at {least}", printed, here))
    return rows


def _sensitivity(data: Data) -> list[Beside]:
    scores, paper = data["scores"], table("sensitivity")
    keep = next(cell.rpartition("@")[2] for cell in scores if "@" in cell)
    if scores[ALL_TOKENS]["relative"] is None:
        return []
    rows = []
    for default in ("tau=0.3", "gamma=5.0", "kernel=s_prime"):
        for row in paper.rows:
            if row.partition("=")[0] == default.partition("=")[0] and row != default:
                printed = paper.value(default, "relative") - paper.value(row, "relative")
                here = _points(scores, f"defaults@{keep}", f"{row}@{keep}")
                rows.append(difference(f"{default} less {row}", printed, here, 2))
    lowest = min(100 * one["relative"] for cell, one in scores.items() if cell.endswith(f"@{keep}"))
    printed_lowest = min(paper.value(row, "relative") for row in paper.rows)
    rows.append(Beside("worst setting, % of all tokens", f"{printed_lowest:.1f}", f"{lowest:.1f}", lowest > 95))
    return rows


def _significance(data: Data) -> list[Beside]:
    paper = table("significance")
    return [
        difference(
            f"Script less {name}, at {keep}",
            paper.value("script", "mme") - paper.value(name, "mme"),
            100 * found[name]["difference"],
        )
        for keep, found in data.items()
        for name in paper.rows
        if name != "script" and name in found
    ]


def _redundancy(data: Data) -> list[Beside]:
    by_distance = {int(far): mean for far, mean in data["by_distance"].items()}
    rows = []
    if TURN in by_distance and 2 * TURN in by_distance:
        falls = by_distance[TURN] - by_distance[1]
        rises = by_distance[2 * TURN] - by_distance[TURN]
        rows.append(Beside(f"cosine, from distance 1 to {TURN}", "falls", f"{falls:+.3f}", falls < 0))
        rows.append(Beside(f"cosine, from distance {TURN} to {2 * TURN}", "rises", f"{rises:+.3f}", rises > 0))
    beside, random = data["above_half"].values()
    more = beside - random
    rows.append(Beside("above 0.5, neighbours less random pairs", "more", f"{100 * more:+.1f} points", more > 0))
    for name, one in data["correlation"].items():
        rows.append(Beside(f"entropy and cosine, {name}", "negative", f"r {one['pearson']:+.2f}", one["pearson"] < 0))
    return rows


def _thresholds(data: Data) -> list[Beside]:
    # the paper looks at the tower's states, which not every model shows
    low, middle, high = (100 * data[tau].get("tower", data[tau])["redundant"] for tau in ("0.1", "0.5", "0.9"))
    return [
        Beside("redundant at tau 0.1", "almost every patch", f"{low:.1f} %", low > 90),
        Beside("redundant at tau 0.5, less than at 0.1", "fewer", f"{middle - low:+.1f} points", middle < low),
        Beside("redundant at tau 0.9", "extremely few", f"{high:.1f} %", high < 10),
    ]


def _preferences(data: Data) -> list[Beside]:
    found = data.get("on_target", {})
    ours = next((name for name in ("qcsp", "script") if name in found), None)
    if ours is None:
        return []
    rows = []
    for other in (name for name in ("attention", "divergence", "redundancy") if name in found):
        for what, i in (("of the kept on what was asked", 0), ("seen whole", 1)):
            gap = 100 * (found[ours][i] - found[other][i])
            rows.append(Beside(f"% {what}, {ours} less {other}", "more", f"{gap:+.1f} points", gap > 0))
    return rows


def _errors(data: Data) -> list[Beside]:
    kinds = {
        "evidence kept, model wrong": ("model", "reading"),
        "lost by QCSP": ("QCSP",),
        "lost by GSP and QCSP": ("both",),
    }
    rows = []
    for keep, one in data.items():
        for name, causes in kinds.items():
            count = sum(one["causes"].get(cause, 0) for cause in causes)
            rows.append(Beside(f"{name}, at {keep}", "an example", f"{count} of {one['wrong']}", count > 0))
    return rows


def _eval(data: Data) -> list[Beside]:
    """Script less each method that the paper has too, at its budgets, for a model with as many visual tokens."""
    scores = data["scores"]
    paper = _accuracy_table(round(scores[ALL_TOKENS]["entering"]))
    if paper is None or scores[ALL_TOKENS]["relative"] is None:
        return []
    return [
        difference(
            f"Script less {name}, at {keep}",
            paper.relative("script", keep) - paper.relative(name, keep),
            _points(scores, f"script@{keep}", f"{name}@{keep}"),
        )
        for name, keep in paper.values
        if name not in ("script", ALL_TOKENS) and {f"script@{keep}", f"{name}@{keep}"} <= set(scores)
    ]


def _accuracy_table(tokens: int) -> PaperTable | None:
    """The first of the paper's accuracy tables whose model has so many visual tokens."""
    return next((one for one in tables().values() if one.tokens == tokens and one.budget == "tokens per image"), None)


SIGN = "Same direction: the difference has the same sign; it is in points of the accuracy relative to all tokens."
COMPARISONS = {
    "eval": Comparison("LLaVA-1.5-7B or NeXT-7B, mean of ten benchmarks", SIGN, _eval),
    "ablation": Comparison("LLaVA-1.5-7B, 16 of 576 tokens; POPE, MME, GQA, ScienceQA", SIGN, _ablation),
    "graph": Comparison(
        "LLaVA-1.5-7B or a sibling (not said), POPE, a tenth of the tokens",
        "Same direction: bipartite is faster; it agrees with the exhaustive graph more than random tokens do; the "
        "differences of right answers, in points, have the same sign.",
        _graph,
    ),
    "overlap": Comparison(
        "LLaVA-1.5-7B, mean of ten benchmarks, % of the budget",
        "Same direction: the same sign. Chance is not in the paper: it is m of 576.",
        _overlap,
    ),
    "sensitivity": Comparison(
        "LLaVA-1.5-7B, 64 of 576 tokens, mean of ten benchmarks",
        f"{SIGN} The worst setting: above 95 %.",
        _sensitivity,
    ),
    "significance": Comparison(
        "LLaVA-NeXT-7B, 160 of 2,880 tokens, points of MME, 20 runs",
        "Same direction: the same sign; here in points of the accuracy.",
        _significance,
    ),
    "redundancy": Comparison(
        "10,000 COCO images, curves and words, no numbers",
        "Same direction: as the words say.",
        _redundancy,
    ),
    "thresholds": Comparison(
        "CLIP-ViT features of COCO images, maps and words, no numbers",
        "Same direction: above 90 %, fewer, below 10 %.",
        _thresholds,
    ),
    "preferences": Comparison(
        "LLaVA-1.5-7B, one image of POPE, maps and words, no numbers",
        "Same direction: what the paper calls DPP-based is closer to the question than the other family.",
        _preferences,
    ),
    "errors": Comparison(
        "one example of each kind of failure, no counts", "Same direction: the kind occurs here too.", _errors
    ),
}

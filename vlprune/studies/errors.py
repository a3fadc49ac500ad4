"""Of the answers that pruning got wrong: who lost the evidence?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vlprune.evaluation.accuracy import percent, ranged, whole
from vlprune.evaluation.answers import WHOLE, Bench, Line
from vlprune.evaluation.reference_methods import Oracle, evidence
from vlprune.evaluation.result import Result, Table
from vlprune.evaluation.stats import wilson

if TYPE_CHECKING:
    from vlprune.evaluation.questions import Item
    from vlprune.methods import Method
    from vlprune.record import Record

NEEDS, QUESTIONS, KEEP = "scenes", (200, 2), (64, 16)
CAUSES = {
    "model": "wrong with all tokens too",
    "GSP": "a thing asked about has no token left; QCSP's m tokens had one, the graph struck it out",
    "QCSP": "a thing asked about has no token left, and none was among QCSP's m",
    "both": "one thing was lost by GSP, another by QCSP",
    "reading": "every thing asked about has a token left, and the model still errs",
}

NOTE = (
    "Evidence: tokens whose middle lies on a thing asked about; *exist* asks about all things of that colour or shape."
)


def study(bench: Bench) -> Result:
    """Sort the wrong answers of Script, as the paper's text has it, by their cause.

    And see which of them come right without GSP, which is Script's default, or with the oracle.
    """
    from vlprune.methods import Script

    tables, data = [], {}
    for keep in bench.keep:
        cells: dict[str, Method] = {
            WHOLE: whole(),
            f"script@{keep}": Script(keep=keep, fusion="supplement"),
            f"without GSP@{keep}": Script(keep=keep, fusion="released"),
            f"oracle@{keep}": Oracle(keep=keep),
        }
        every, script, no_graph, oracle = bench.ask(cells, note=lost).values()
        wrong = [i for i, line in enumerate(script) if not line["right"]]
        causes = [cause(script[i], bool(every[i]["right"])) for i in wrong]
        counts = Counter(causes)
        rows = []
        for name, says in CAUSES.items():
            own = [i for i, why in zip(wrong, causes) if why == name]
            mended = [sum(lines[i]["right"] for i in own) for lines in (no_graph, oracle)]
            share = percent(len(own) / len(wrong)) if wrong else "-"
            rows.append([name, str(len(own)), share, *map(str, mended), says])
        columns = ["lost by", "wrong", "% of wrong", "right without GSP", "right with the oracle", "which means"]
        note = f"{len(wrong)} of {len(script)} are wrong. {NOTE}"
        tables.append(Table(f"Wrong answers of Script, keeping {keep}", columns, rows, note))
        tables.append(_given_evidence(keep, script))
        data[str(keep)] = {"wrong": len(wrong), "asked": len(script), "causes": dict(counts)}
        data[str(keep)]["kinds"] = _kinds(bench, wrong, causes)
    return Result("Errors", tables, {"errors": _figure(bench, data)}, data)


def lost(item: Item, record: Record) -> dict[str, Any]:
    """For each thing asked about: whether GSP's m, QCSP's m and what was kept in the end have a token of it."""
    from vlprune.selection import graph_keep

    if record.redundancy is None or record.order is None:
        return {}
    m = record.after
    sets = [graph_keep(record.redundancy[None], m)[0], record.order[:m], record.kept]
    gsp, qcsp, kept = (set(some.tolist()) for some in sets)
    things = [set(part.tolist()) for part in evidence(item, record.grid[0])]
    return {"things": [[bool(thing & some) for some in (gsp, qcsp, kept)] for thing in things]}


def cause(line: Line, right_with_all: bool) -> str:
    """Who is to blame for a wrong answer.

    >>> cause({"things": [[False, True, False]]}, True), cause({"things": [[True, False, False]]}, True)
    ('GSP', 'QCSP')
    >>> cause({"things": [[True, True, True]]}, True), cause({"things": []}, False)
    ('reading', 'model')
    """
    if not right_with_all:
        return "model"
    gone = {"GSP" if qcsp else "QCSP" for _, qcsp, kept in line["things"] if not kept}
    return "reading" if not gone else "both" if len(gone) == 2 else gone.pop()


def _given_evidence(keep: int | float, lines: Sequence[Line]) -> Table:
    """Right answers where all, some or none of what was asked about is left."""
    groups: dict[str, list[bool]] = {"all of it": [], "some of it": [], "none of it": [], "there is none": []}
    for line in lines:
        left = [kept for _, _, kept in line["things"]]
        name = (
            "there is none" if not left else "all of it" if all(left) else "some of it" if any(left) else "none of it"
        )
        groups[name].append(bool(line["right"]))
    rows = [
        [name, str(len(found)), ranged(sum(found) / len(found), wilson(sum(found), len(found))) if found else "-"]
        for name, found in groups.items()
    ]
    note = "Right answers in %, with Wilson's 95 % intervals. There is none: the answer to how many is 0."
    return Table(f"Does the evidence matter? Keeping {keep}", ["evidence left", "questions", "right"], rows, note)


def _kinds(bench: Bench, wrong: Sequence[int], causes: Sequence[str]) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {kind: dict.fromkeys(CAUSES, 0) for kind in bench.kinds}
    for i, why in zip(wrong, causes):
        found[bench.items[i].kind][why] += 1
    return found


def _figure(bench: Bench, data: Any) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(data), 3.6), layout="constrained")
    for axes, (keep, found) in zip(figure.subplots(1, len(data), squeeze=False)[0], data.items()):
        base = [0] * len(bench.kinds)
        for name in CAUSES:
            heights = [found["kinds"][kind][name] for kind in bench.kinds]
            axes.bar(bench.kinds, heights, bottom=base, label=name)
            base = [a + b for a, b in zip(base, heights)]
        axes.set(title=f"keeping {keep}", ylabel="wrong answers", ylim=(0, 1.08 * max(*base, 1)))
        axes.legend(fontsize=8)
    return figure

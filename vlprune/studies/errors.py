"""Which part of Script lost the evidence that a wrong answer lacked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from vlprune.evaluation.accuracy import percent, percent_with_interval
from vlprune.evaluation.answers import AnswerLine, Evaluation
from vlprune.evaluation.questions import ImageQuestion
from vlprune.evaluation.reference_methods import ALL_TOKENS, Oracle, evidence_tokens, keep_all_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import wilson_interval
from vlprune.methods import Method, Script
from vlprune.record import Record
from vlprune.selection import graph_keep

NEEDS, QUESTIONS, KEEP = "scenes", (200, 20), (64, 16)
CAUSES = {
    "model": "wrong with all tokens too",
    "GSP": "a thing asked about has no token left; QCSP's m tokens had one, the graph struck it out",
    "QCSP": "a thing asked about has no token left, and none was among QCSP's m",
    "both": "one thing was lost by GSP, another by QCSP",
    "reading": "every thing asked about has a token left, and the model still errs",
}

NOTE = (
    'Evidence: tokens whose middle lies on a thing asked about; "exist" asks about all things of that colour or shape.'
)


def study(evaluation: Evaluation) -> StudyResult:
    """Sort the wrong answers of Script, as the paper's text has it, by their cause.

    And see which of them come right without GSP, which is Script's default, or with the oracle.
    """
    tables, data = [], {}
    for keep in evaluation.keep:
        cells: dict[str, Method] = {
            ALL_TOKENS: keep_all_tokens(),
            f"script@{keep}": Script(keep=keep, fusion="supplement"),
            f"without GSP@{keep}": Script(keep=keep, fusion="released"),
            f"oracle@{keep}": Oracle(keep=keep),
        }
        unpruned, script, no_graph, oracle = evaluation.ask(cells, details=find_evidence).values()
        causes = {i: find_cause(line, bool(unpruned[i]["right"])) for i, line in enumerate(script) if not line["right"]}
        tables.append(_causes_table(keep, causes, script, no_graph, oracle))
        tables.append(_evidence_table(keep, script))
        data[str(keep)] = {"wrong": len(causes), "asked": len(script), "causes": dict(Counter(causes.values()))}
        data[str(keep)]["kinds"] = _causes_by_kind(evaluation, causes)
    return StudyResult("Errors", tables, {"errors": _figure(evaluation, data)}, data)


def _causes_table(
    keep: int | float,
    causes: Mapping[int, str],
    script: Sequence[AnswerLine],
    no_graph: Sequence[AnswerLine],
    oracle: Sequence[AnswerLine],
) -> ResultTable:
    """For each cause: how many answers are wrong by it, and how many of them come right by the other methods."""
    rows = []
    for name, meaning in CAUSES.items():
        own = [i for i, cause in causes.items() if cause == name]
        mended = [sum(lines[i]["right"] for i in own) for lines in (no_graph, oracle)]
        share = percent(len(own) / len(causes)) if causes else "-"
        rows.append([name, str(len(own)), share, *map(str, mended), meaning])
    columns = ["lost by", "wrong", "% of wrong", "right without GSP", "right with the oracle", "which means"]
    note = f"{len(causes)} of {len(script)} are wrong. {NOTE}"
    return ResultTable(f"Wrong answers of Script, keeping {keep}", columns, rows, note)


def find_evidence(question: ImageQuestion, record: Record) -> dict[str, Any]:
    """For each thing asked about: whether GSP's m, QCSP's m and what was kept in the end have a token of it."""
    if record.redundancy is None or record.order is None:
        return {}
    m = record.after
    sets = [graph_keep(record.redundancy[None], m)[0], record.order[:m], record.kept]
    gsp, qcsp, kept = (set(some.tolist()) for some in sets)
    things = [set(part.tolist()) for part in evidence_tokens(question, record.grid[0])]
    return {"things": [[bool(thing & some) for some in (gsp, qcsp, kept)] for thing in things]}


def find_cause(line: AnswerLine, right_with_all: bool) -> str:
    """The cause of a wrong answer, one of `CAUSES`.

    >>> find_cause({"things": [[False, True, False]]}, True), find_cause({"things": [[True, False, False]]}, True)
    ('GSP', 'QCSP')
    >>> find_cause({"things": [[True, True, True]]}, True), find_cause({"things": []}, False)
    ('reading', 'model')
    """
    if not right_with_all:
        return "model"
    gone = {"GSP" if qcsp else "QCSP" for _, qcsp, kept in line["things"] if not kept}
    return "reading" if not gone else "both" if len(gone) == 2 else gone.pop()


def _evidence_table(keep: int | float, lines: Sequence[AnswerLine]) -> ResultTable:
    """Right answers where all, some or none of what was asked about is left."""
    groups: dict[str, list[bool]] = {"all of it": [], "some of it": [], "none of it": [], "there is none": []}
    for line in lines:
        left = [kept for _, _, kept in line["things"]]
        name = (
            "there is none" if not left else "all of it" if all(left) else "some of it" if any(left) else "none of it"
        )
        groups[name].append(bool(line["right"]))
    rows = []
    for name, found in groups.items():
        right, asked = sum(found), len(found)
        share = percent_with_interval(right / asked, wilson_interval(right, asked)) if found else "-"
        rows.append([name, str(asked), share])
    note = "Right answers in %, with Wilson's 95 % intervals. There is none: the answer to how many is 0."
    return ResultTable(f"Does the evidence matter? Keeping {keep}", ["evidence left", "questions", "right"], rows, note)


def _causes_by_kind(evaluation: Evaluation, causes: Mapping[int, str]) -> dict[str, dict[str, int]]:
    """How many questions of each kind are wrong by each cause."""
    found: dict[str, dict[str, int]] = {kind: dict.fromkeys(CAUSES, 0) for kind in evaluation.kinds}
    for i, cause in causes.items():
        found[evaluation.questions[i].kind][cause] += 1
    return found


def _figure(evaluation: Evaluation, data: Any) -> Any:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5 * len(data), 3.6), layout="constrained")
    for axes, (keep, found) in zip(figure.subplots(1, len(data), squeeze=False)[0], data.items()):
        base = [0] * len(evaluation.kinds)
        for name in CAUSES:
            heights = [found["kinds"][kind][name] for kind in evaluation.kinds]
            axes.bar(evaluation.kinds, heights, bottom=base, label=name)
            base = [a + b for a, b in zip(base, heights)]
        axes.set(title=f"keeping {keep}", ylabel="wrong answers", ylim=(0, 1.08 * max(*base, 1)))
        axes.legend(fontsize=8)
    return figure

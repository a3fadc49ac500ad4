"""Which part of Script lost the evidence that a wrong answer lacked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from vlprune.errors import UserError
from vlprune.evaluation.accuracy import percent, percent_with_interval
from vlprune.evaluation.answers import AnswerLine, Details, Evaluation
from vlprune.evaluation.boxes import tokens_in_boxes
from vlprune.evaluation.questions import ImageQuestion
from vlprune.evaluation.reference_methods import ALL_TOKENS, Oracle, evidence_tokens, keep_all_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import wilson_interval
from vlprune.methods import Method, Script
from vlprune.record import Record
from vlprune.selection import graph_keep
from vlprune.show.style import COLORS, add_legend, dress, new_figure

NEEDS, QUESTIONS, KEEP = "boxes", (200, 20), (64, 16)
CAUSES = {
    "model": "wrong with all tokens too",
    "GSP": "a thing asked about has no token left; QCSP's m tokens had one, the graph struck it out",
    "QCSP": "a thing asked about has no token left, and none was among QCSP's m",
    "both": "one thing was lost by GSP, another by QCSP",
    "reading": "every thing asked about has a token left, and the model still errs",
}
#: The same in a few words, for the figure.
SHORT_CAUSES = {
    "model": "model: wrong with all tokens too",
    "GSP": "GSP: the graph struck it out",
    "QCSP": "QCSP: never among the chosen",
    "both": "both: one thing each",
    "reading": "reading: a token was left, and did not help",
}

NOTE = (
    'Evidence: tokens whose middle lies on a thing asked about; "exist" asks about all things of that colour or shape.'
)
BOXES_NOTE = (
    "Evidence: tokens of which half lies in a box of what is asked about, or the one that has most of a small box."
)
#: The tokens of each thing that a question is about, on a grid (rows, columns).
EvidenceFinder = Callable[[ImageQuestion, tuple[int, int]], list[set[int]]]


def study(evaluation: Evaluation) -> StudyResult:
    """Sort the wrong answers of Script by their cause.

    And see which of them come right without GSP or with the oracle, which is there for drawn scenes only. Where things
    are is known of drawn scenes; the lines of a file have boxes around what they ask about.
    """
    tables, data = [], {}
    details = evidence_details(_evidence_finder(evaluation))
    for keep in evaluation.keep:
        cells: dict[str, Method] = {
            ALL_TOKENS: keep_all_tokens(),
            f"script@{keep}": Script(keep=keep),
            f"without GSP@{keep}": Script(keep=keep, fusion="released"),
        }
        if evaluation.has_scenes:
            cells[f"oracle@{keep}"] = Oracle(keep=keep)
        unpruned, script, *others = evaluation.ask(cells, details=details).values()
        causes = {i: find_cause(line, bool(unpruned[i]["right"])) for i, line in enumerate(script) if not line["right"]}
        tables.append(_causes_table(keep, causes, len(script), others, NOTE if evaluation.has_scenes else BOXES_NOTE))
        tables.append(_evidence_table(keep, script))
        data[str(keep)] = {"wrong": len(causes), "asked": len(script), "causes": dict(Counter(causes.values()))}
        data[str(keep)]["kinds"] = _causes_by_kind(evaluation, causes)
    return StudyResult("Errors", tables, {"errors": _figure(evaluation, data)}, data)


def _causes_table(
    keep: int | float,
    causes: Mapping[int, str],
    asked: int,
    others: Sequence[Sequence[AnswerLine]],
    evidence: str,
) -> ResultTable:
    """For each cause: how many answers are wrong by it, and how many of them come right by the other methods.

    These are Script without GSP, and the oracle, if it could be asked.
    """
    rows = []
    for name, meaning in CAUSES.items():
        own = [i for i, cause in causes.items() if cause == name]
        mended = [sum(lines[i]["right"] for i in own) for lines in others]
        share = percent(len(own) / len(causes)) if causes else "-"
        rows.append([name, str(len(own)), share, *map(str, mended), meaning])
    compared = ["right without GSP", "right with the oracle"][: len(others)]
    columns = ["lost by", "wrong", "% of wrong", *compared, "which means"]
    note = f"{len(causes)} of {asked} are wrong. {evidence}"
    return ResultTable(f"Wrong answers of Script, keeping {keep}", columns, rows, note)


def _evidence_finder(evaluation: Evaluation) -> EvidenceFinder:
    """What finds the tokens of things: in drawn scenes by the scene, else by the boxes of the file."""
    if evaluation.has_scenes:
        return lambda question, grid: [set(part.tolist()) for part in evidence_tokens(question, grid[0])]
    known: dict[tuple[int, tuple[int, int]], list[set[int]]] = {}

    def find(question: ImageQuestion, grid: tuple[int, int]) -> list[set[int]]:
        if (question.number, grid) not in known:
            found = tokens_in_boxes(evaluation.loaded.processor, question, grid)
            known[question.number, grid] = [set(part.tolist()) for part in found]
        return known[question.number, grid]

    return find


def evidence_details(find: EvidenceFinder) -> Details:
    """What a line says of each thing asked about: whether GSP's m, QCSP's m and what was kept have a token of it."""

    def details(question: ImageQuestion, record: Record) -> dict[str, Any]:
        if record.redundancy is None or record.order is None:
            return {}
        if len(record.parts) > 1:
            raise UserError("its images are cut into tiles, and this study needs one grid.")
        m = record.after
        sets = [graph_keep(record.redundancy[None], m)[0], record.order[:m], record.kept]
        gsp, qcsp, kept = (set(some.tolist()) for some in sets)
        things = find(question, record.grid)
        return {"things": [[bool(thing & some) for some in (gsp, qcsp, kept)] for thing in things]}

    return details


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
    kinds = list(evaluation.kinds)
    figure = new_figure(1.9 + 0.3 * len(kinds), "Script's wrong answers by kind of question, and what lost them")
    for i, (axes, (keep, found)) in enumerate(zip(figure.subplots(1, len(data), squeeze=False)[0], data.items())):
        base = [0] * len(kinds)
        for (name, words), color in zip(SHORT_CAUSES.items(), COLORS):
            counts = [found["kinds"][kind][name] for kind in kinds]
            axes.barh(kinds, counts, left=base, color=color, edgecolor="white", linewidth=0.8, label=words)
            base = [a + b for a, b in zip(base, counts)]
        axes.invert_yaxis()
        axes.set_xlim(0, 1.05 * max(*base, 1))
        axes.xaxis.get_major_locator().set_params(integer=True)
        dress(axes, x="wrong answers", title=f"keeping {keep}: {found['wrong']} of {found['asked']:,} wrong")
        if i:
            axes.set_yticklabels([])
    handles, names = axes.get_legend_handles_labels()
    add_legend(figure, handles, names, columns=2)
    return figure

"""Accuracy on photographs, and whether answers come from the place that is asked about: `vlprune eval`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vlprune.evaluation.accuracy import cell_name, evaluate_methods, outcomes, percent, percent_with_interval
from vlprune.evaluation.answers import AnswerLine, Evaluation
from vlprune.evaluation.captioned_photos import PhotoQuestion
from vlprune.evaluation.photographs import SIZES, size_of
from vlprune.evaluation.reference_methods import ALL_TOKENS, AskedPlace, Oracle, keep_all_tokens
from vlprune.evaluation.result import ResultTable, StudyResult
from vlprune.evaluation.stats import format_p, mcnemar, wilson_interval
from vlprune.evaluation.yes_no import yes_no_scores
from vlprune.methods import Method
from vlprune.methods.in_llm import split_stages
from vlprune.pocket.photo_scenes import SIZE

ONLY_PLACE, OUTSIDE = "only its place", "as many outside it"
LOCALITY_NOTE = (
    "{} questions about what was pasted on a photograph, whose place is known. Only its place: the tokens on it and no "
    "others; as many outside it: the same number drawn from the rest; oracle: its place first, from the middle "
    "outwards, then others at random. Right answers in %; the AUC (see above) is of the questions that are answered "
    "with yes or no. p: of the difference to all tokens, McNemar's, exact and two-sided, not corrected."
)
SIZE_NOTE = (
    "Right answers in % by the share of the picture that what is asked about covers: small up to 1 %, medium up to "
    "10 %, large above; of the same questions as above."
)
#: Lines of answers to the located questions: by row of the tables, which is (method, keep).
Located = Mapping[tuple[str, str], Sequence[AnswerLine]]


def evaluate_photos(evaluation: Evaluation, methods: Mapping[str, Mapping[str, Method]]) -> StudyResult:
    """`evaluate_methods`; where a question's place is known, also answers from there alone and from elsewhere."""
    result = evaluate_methods(evaluation, methods)
    asked = [one for one in evaluation.questions if isinstance(one, PhotoQuestion) and one.place]
    if not asked:
        return result
    reference = _ask_reference(evaluation, asked, methods)
    lines: dict[tuple[str, str], Sequence[AnswerLine]] = dict(reference)
    for name, by_keep in methods.items():
        for keep in by_keep:
            if cell_name(name, keep) in result.data["scores"]:
                known = {line["q"]: line for line in evaluation.run_folder.read_answers(cell_name(name, keep))}
                lines[name, keep] = [known[question.number] for question in asked]
    result.tables += [locality_table(asked, reference), size_table(asked, lines)]
    result.data["locality"] = {
        " ".join(row).strip(): {"accuracy": sum(outcomes(found)) / len(found), "yes_no": yes_no_scores(asked, found)}
        for row, found in reference.items()
    }
    return result


def _ask_reference(
    evaluation: Evaluation, asked: list[PhotoQuestion], methods: Mapping[str, Mapping[str, Method]]
) -> Located:
    """The answers with all tokens, with the place alone, with others alone, and by the oracle at every budget."""
    whole = {ALL_TOKENS: keep_all_tokens()}
    places = {ONLY_PLACE: AskedPlace(keep=1.0), OUTSIDE: AskedPlace(keep=1.0, inside=False)}
    lines = evaluation.ask(
        {**whole, **places}, questions=asked, reference=ALL_TOKENS, alike=lambda question: len(_place(question))
    )
    every = [one for by_keep in methods.values() for one in by_keep.items()]
    keeps = {keep: method.keep for keep, method in every if split_stages(method)[1] is None}
    oracles: dict[str, Method] = {f"oracle@{keep}": Oracle(keep=budget) for keep, budget in keeps.items()}
    lines |= evaluation.ask({**whole, **oracles}, questions=asked, skip_unsupported=True, reference=ALL_TOKENS)
    rows = {(ALL_TOKENS, ""): lines[ALL_TOKENS], (ONLY_PLACE, ""): lines[ONLY_PLACE], (OUTSIDE, ""): lines[OUTSIDE]}
    return rows | {("oracle", keep): lines[f"oracle@{keep}"] for keep in keeps if f"oracle@{keep}" in lines}


def _place(question: object) -> tuple[int, ...]:
    """The tokens on what a question is about."""
    return question.place if isinstance(question, PhotoQuestion) else ()


def locality_table(asked: Sequence[PhotoQuestion], lines: Located) -> ResultTable:
    """Right answers by kind of question with all tokens, the place alone, others alone, and by the oracle."""
    kinds = list(dict.fromkeys(question.kind for question in asked))
    whole, rows = outcomes(lines[ALL_TOKENS, ""]), []
    for (name, keep), found in lines.items():
        right = outcomes(found)
        shares = []
        for kind in kinds:
            of_kind = [good for question, good in zip(asked, right) if question.kind == kind]
            shares.append(percent(sum(of_kind) / len(of_kind)))
        areas = [one["auc"] for one in yes_no_scores(asked, found).values()]
        area = f"{100 * areas[0]:.1f}" if areas and areas[0] is not None else "-"
        entering = f"{sum(line['entering'] for line in found) / len(found):.4g}"
        total = percent_with_interval(sum(right) / len(right), wilson_interval(sum(right), len(right)))
        p = "" if name == ALL_TOKENS else format_p(mcnemar(whole, right)[2])
        rows.append([name, keep, entering, *shares, area, total, p])
    columns = ["tokens", "keep", "entering", *kinds, "AUC", "all", "p"]
    return ResultTable("Answers from the place alone", columns, rows, LOCALITY_NOTE.format(f"{len(asked):,}"))


def size_table(asked: Sequence[PhotoQuestion], lines: Located) -> ResultTable:
    """Right answers by the size of what is asked about."""
    sizes = [size_of(_share(question)) for question in asked]
    present = [size for size in SIZES if size in sizes]
    rows = []
    for (name, keep), found in lines.items():
        right = outcomes(found)
        of_size = {size: [good for one, good in zip(sizes, right) if one == size] for size in present}
        rows.append([name, keep, *(percent(sum(goods) / len(goods)) for goods in of_size.values())])
    columns = ["tokens", "keep", *(f"{size} ({sizes.count(size):,})" for size in present)]
    return ResultTable("By size of what is asked about", columns, rows, SIZE_NOTE)


def _share(question: PhotoQuestion) -> float:
    """The share of the picture that what is asked about covers."""
    return sum((right - left) * (low - top) for left, top, right, low in question.boxes or ()) / SIZE**2

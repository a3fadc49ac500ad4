"""`vlprune eval`: accuracy of methods at several budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vlprune.cli.options import (
    KEEPS_HELP,
    METHODS_HELP,
    AsJson,
    Device,
    EncoderName,
    MaxNewTokens,
    ModelName,
    parse_keep,
    parse_methods,
    split_methods,
)
from vlprune.cli.runs import (
    Batch,
    Data,
    Frames,
    Match,
    Out,
    Resolution,
    RunOptions,
    Seed,
    Split,
    open_evaluation,
    parse_budgets,
    print_result,
)
from vlprune.cli.terminal import show_steps
from vlprune.errors import UserError

if TYPE_CHECKING:
    from vlprune.evaluation.answers import Evaluation
    from vlprune.methods import Method

DEFAULT_BUDGETS = "192,128,64,32,16"


def evaluate(
    model: ModelName = "pocket",
    names: Annotated[
        str,
        typer.Option(
            "--methods", metavar="A,B,...", help=f"{METHODS_HELP} oracle, which is in all, knows where to look."
        ),
    ] = "all",
    keep: Annotated[str, typer.Option(help=KEEPS_HELP)] = DEFAULT_BUDGETS,
    split: Split = "test",
    questions: Annotated[
        int, typer.Option(min=1, help="Drawn questions of each kind; with a list of captions, pictures of each kind.")
    ] = 600,
    data: Data = None,
    match: Match = "exact",
    seed: Seed = 0,
    dual_encoder: EncoderName = None,
    max_new_tokens: MaxNewTokens = 16,
    device: Device = "auto",
    batch: Batch = None,
    frames: Frames = None,
    resolution: Resolution = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Score methods at several budgets: how many questions are still answered right.

    Asks every question with all tokens and by every method at every budget, and the oracle, which knows where to look.
    A run that was stopped goes on where it was when started again.
    """
    asking = (model, data, split, questions, match, seed, dual_encoder, max_new_tokens, device, batch, out)
    options = RunOptions(*asking, frames=frames, resolution=resolution)
    with show_steps(f"loading {model}", quiet=as_json) as steps:
        methods = parse_with_oracle(names, parse_budgets(keep))
        if options.has_captions and "oracle" in methods:
            raise UserError("--methods oracle: with a list of captions it is asked anyway, where a place is known.")
        if data is None and names == "all":
            methods["oracle"] = _oracles(parse_budgets(keep))
        evaluation = open_evaluation("eval", options, steps, asked={"methods": names, "keep": keep})
        from vlprune.evaluation.photo_accuracy import evaluate_photos
        from vlprune.studies.beside_paper import beside_paper, describe_run
        from vlprune.studies.rank_correlation import rank_correlation

        result = evaluate_photos(evaluation, methods)
        result.tables += beside_paper("eval", result.data, describe_run(evaluation))
        result.tables += rank_correlation(result.data)
        folder = evaluation.run_folder.path
        steps.begin("drawing")
        result.save(folder)
    print_result(result, folder, as_json)
    _write_submissions(evaluation, list(result.data["scores"]), as_json)


def _write_submissions(evaluation: Evaluation, cells: list[str], quiet: bool) -> None:
    """Write what the test servers of VQAv2 and VizWiz take, a file for each method, if these were asked."""
    import json

    from vlprune.evaluation.benchmarks import submission_lines

    folder = evaluation.run_folder
    for cell in cells:
        answers = {line["q"]: line["answer"] for line in folder.read_answers(cell)}
        lines = submission_lines(evaluation.questions, answers)
        if lines is not None:
            path = folder.path / f"submission-{cell.replace(' ', '_').replace('/', '_')}.json"
            path.write_text(json.dumps(lines) + "\n", encoding="utf-8")
            if not quiet:
                print(f"wrote {path}")


def parse_with_oracle(names: str, keeps: list[str]) -> dict[str, dict[str, Method]]:
    """What --methods lists, by name and then by budget; "oracle" may be among them."""
    methods: dict[str, dict[str, Method]] = {}
    for spec in split_methods(names) or [""]:
        methods |= {"oracle": _oracles(keeps)} if spec == "oracle" else parse_methods(spec, keeps)
    return methods


def _oracles(keeps: list[str]) -> dict[str, Method]:
    """The oracle at each budget."""
    from vlprune.evaluation.reference_methods import Oracle

    return {keep: Oracle(keep=parse_keep(keep)) for keep in keeps}

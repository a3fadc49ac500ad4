"""`vlprune eval`: accuracy of methods at several budgets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from vlprune.cli.options import AsJson, ClipName, Device, MaxNewTokens, ModelName, parse_keep, parse_method, split_list
from vlprune.cli.runs import (
    Batch,
    Data,
    Match,
    Out,
    RunOptions,
    Seed,
    Split,
    open_evaluation,
    parse_budgets,
    write_result,
)
from vlprune.cli.terminal import show_steps
from vlprune.errors import UserError

if TYPE_CHECKING:
    from vlprune.methods import Method

DEFAULT_BUDGETS = "192,128,64,32,16"


def evaluate(
    model: ModelName = "pocket",
    names: Annotated[
        str, typer.Option("--methods", metavar="A,B,...", help="all, or some; settings go behind: script:tau=0.2:rho=1")
    ] = "all",
    keep: Annotated[str, typer.Option(help="Budgets: numbers of tokens, or ratios.")] = DEFAULT_BUDGETS,
    split: Split = "test",
    questions: Annotated[int, typer.Option(min=1, help="Drawn questions of each kind.")] = 600,
    data: Data = None,
    match: Match = "exact",
    seed: Seed = 0,
    clip: ClipName = None,
    max_new_tokens: MaxNewTokens = 16,
    device: Device = "auto",
    batch: Batch = None,
    out: Out = None,
    as_json: AsJson = False,
) -> None:
    """Score methods at several budgets: how many questions are still answered right.

    Asks every question with all tokens and by every method at every budget, and the oracle, which knows where to look.
    A run that was stopped goes on where it was when started again.
    """
    options = RunOptions(model, data, split, questions, match, seed, clip, max_new_tokens, device, batch, out)
    with show_steps(f"loading {model}", quiet=as_json) as steps:
        methods = parse_methods(names, keep)
        if data is None and "oracle" not in methods and names == "all":
            methods["oracle"] = _oracles(keep)
        evaluation = open_evaluation("eval", options, steps, asked={"methods": names, "keep": keep})
        from vlprune.evaluation.accuracy import evaluate_methods

        result = evaluate_methods(evaluation, methods)
    write_result(result, evaluation.run_folder.path, as_json)


def parse_methods(names: str, keep: str) -> dict[str, dict[str, Method]]:
    """ "script:tau=0.2,random" and "64,16" as methods by name and budget."""
    from vlprune.methods import list_methods

    wanted = [*list_methods(), "script:fusion=supplement"] if names == "all" else split_list(names)
    if not wanted:
        raise UserError("--methods is empty: name some, with commas between, or say all.")
    methods: dict[str, dict[str, Method]] = {}
    for spec in wanted:
        name, *pairs = spec.split(":")
        if name == "oracle" and not pairs:
            methods[spec] = _oracles(keep)
        else:
            methods[spec] = {budget: parse_method(name, budget, pairs, listed=True) for budget in parse_budgets(keep)}
    return methods


def _oracles(keep: str) -> dict[str, Method]:
    """The oracle at each budget."""
    from vlprune.evaluation.reference_methods import Oracle

    return {budget: Oracle(keep=parse_keep(budget)) for budget in parse_budgets(keep)}

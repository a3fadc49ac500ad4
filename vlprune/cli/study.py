"""`vlprune study`: the paper's tables and figures."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from vlprune.budget import Budget
from vlprune.cli.options import AsJson, ClipName, Device, MaxNewTokens, ModelName, parse_keep, suggest_name
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
from vlprune.studies import STUDIES, get_study, small_notice


def study(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(STUDIES)}.")],
    small: Annotated[bool, typer.Option("--small", help="Few questions, for a look: about a minute on a CPU.")] = False,
    model: ModelName = "pocket",
    keep: Annotated[str | None, typer.Option(help="Budgets in place of the study's own.")] = None,
    split: Split = "validation",
    questions: Annotated[
        int | None, typer.Option(min=1, help="Drawn questions of each kind, in place of the study's own number.")
    ] = None,
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
    """Repeat a study of the paper: tables, figures and numbers, in a folder."""
    if name not in STUDIES:
        raise UserError(f"study {name}: no such study; {suggest_name(name, list(STUDIES))}")
    with show_steps(f"loading {model}", quiet=as_json) as steps:
        chosen = get_study(name)
        if chosen.NEEDS == "scenes" and data is not None:
            raise UserError(
                f"study {name} needs to know where things are, so it goes with the pocket world and no --data."
            )
        count = questions or chosen.QUESTIONS[small]
        budgets = tuple(parse_fixed_keep(text) for text in parse_budgets(keep)) if keep else chosen.KEEP
        options = RunOptions(model, data, split, count, match, seed, clip, max_new_tokens, device, batch, out)
        told: dict[str, Any] = {"need_answers": chosen.NEEDS != "images", "keep": budgets, "small": small}
        evaluation = open_evaluation(f"study {name}", options, steps, **told)
        result = chosen.study(evaluation)
        result.notice = small_notice(chosen, evaluation) if small else ""
    write_result(result, evaluation.run_folder.path, as_json)


def parse_fixed_keep(text: str) -> int | float:
    """A number of tokens or a ratio; an adaptive budget is refused."""
    keep = parse_keep(text)
    if isinstance(keep, Budget):
        raise UserError(
            f"--keep {text}: studies take numbers of tokens or ratios (study adaptive finds shares itself)."
        )
    return keep

"""`vlprune study`: the paper's tables and figures."""

from __future__ import annotations

from typing import Annotated, Any, cast

import typer

from vlprune.budget import Budget
from vlprune.cli.options import (
    METHODS_HELP,
    AsJson,
    Device,
    EncoderName,
    MaxNewTokens,
    ModelName,
    parse_keep,
    parse_methods,
    suggest_name,
)
from vlprune.cli.runs import (
    Batch,
    Data,
    Frames,
    Match,
    Out,
    PhotographOptions,
    Resolution,
    RunOptions,
    Seed,
    Split,
    open_evaluation,
    open_photographs,
    parse_budgets,
    print_result,
)
from vlprune.cli.terminal import show_steps
from vlprune.errors import UserError
from vlprune.studies import STUDIES, get_study, images_notice, run_study, small_notice


def study(
    name: Annotated[str, typer.Argument(metavar="NAME", help=f"One of {', '.join(STUDIES)}.")],
    small: Annotated[bool, typer.Option("--small", help="Few questions, for a look: about a minute on a CPU.")] = False,
    model: ModelName = "pocket",
    names: Annotated[
        str | None,
        typer.Option(
            "--methods",
            metavar="A,B,...",
            help="For study significance: what Script is compared with. For study coverage: the methods to look at. "
            + METHODS_HELP,
        ),
    ] = None,
    keep: Annotated[str | None, typer.Option(help="Budgets in place of the study's own.")] = None,
    split: Split = "validation",
    questions: Annotated[
        int | None, typer.Option(min=1, help="Drawn questions of each kind, in place of the study's own number.")
    ] = None,
    data: Data = None,
    tower: Annotated[
        str | None,
        typer.Option(
            help="For study coverage: a vision transformer (folder or hub id; the pocket model's if not said). Its "
            "--data is a folder of photographs with COCO's or YOLO's labels."
        ),
    ] = None,
    pixels: Annotated[
        int | None,
        typer.Option(min=1, help="For study coverage: the side of the square that photographs are squeezed into."),
    ] = None,
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
    """Repeat a study of the paper: tables, figures and numbers, in a folder."""
    if name not in STUDIES:
        raise UserError(f"study {name}: no such study; {suggest_name(name, list(STUDIES))}")
    with show_steps(f"loading {tower or model}", quiet=as_json) as steps:
        chosen = get_study(name)
        _check_tower_options(name, chosen.NEEDS == "photographs", model, tower, pixels)
        if chosen.NEEDS == "scenes" and data is not None:
            raise UserError(
                f"study {name} needs to know where things are, so it goes with the pocket world and no --data."
            )
        if names is not None and not getattr(chosen, "TAKES_METHODS", False):
            raise UserError(
                f"--methods {names}: it goes with study significance or coverage; study {name} compares its own."
            )
        count = questions or chosen.QUESTIONS[small]
        budgets = tuple(parse_fixed_keep(text) for text in parse_budgets(keep)) if keep else chosen.KEEP
        methods = parse_methods(names, list(map(str, budgets))) if names is not None else None
        if chosen.NEEDS == "photographs":
            looking = PhotographOptions(tower or "pocket", pixels, data, split, count, seed, device, batch, out)
            run = open_photographs(f"study {name}", looking, steps, keep=budgets, small=small, methods=methods)
            result, folder = chosen.study(cast(Any, run)), run.run_folder.path
            result.notice = images_notice(len(run.photographs)) if small else ""
        else:
            asking = (model, data, split, count, match, seed, dual_encoder, max_new_tokens, device, batch, out)
            options = RunOptions(*asking, frames=frames, resolution=resolution)
            told: dict[str, Any] = {"need_answers": chosen.NEEDS != "images", "need_boxes": chosen.NEEDS == "boxes"}
            told |= {"keep": budgets, "small": small}
            told |= {"methods": methods} if methods is not None else {}
            evaluation = open_evaluation(f"study {name}", options, steps, **told)
            result, folder = run_study(name, evaluation), evaluation.run_folder.path
            result.notice = small_notice(chosen, evaluation) if small else ""
        steps.begin("drawing")
        result.save(folder)
    print_result(result, folder, as_json)


def _check_tower_options(name: str, sees: bool, model: str, tower: str | None, pixels: int | None) -> None:
    """Refuse options of a vision tower for studies of a whole model, and the other way round."""
    if sees and model != "pocket":
        raise UserError(f"--model {model}: study {name} looks at a vision tower alone: say --tower.")
    for option, value in {"--tower": tower, "--pixels": pixels}.items():
        if value is not None and not sees:
            raise UserError(f"{option} {value}: it goes with study coverage; study {name} takes --model.")


def parse_fixed_keep(text: str) -> int | float:
    """A number of tokens or a ratio; an adaptive budget is refused."""
    keep = parse_keep(text)
    if isinstance(keep, Budget):
        raise UserError(
            f"--keep {text}: studies take numbers of tokens or ratios (study adaptive finds shares itself)."
        )
    return keep

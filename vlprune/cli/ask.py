"""`vlprune ask`: one question about an image or a video."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from vlprune.budget import Budget
from vlprune.cli.files import check_picture_path, read_image, read_video, write_picture
from vlprune.cli.options import (
    KEEP_HELP,
    AsJson,
    ClipName,
    Device,
    Force,
    MaxNewTokens,
    MethodName,
    ModelName,
    Question,
    Settings,
    Wide,
    check_question,
    parse_method,
)
from vlprune.cli.terminal import console, show_steps
from vlprune.errors import UserError
from vlprune.evaluation.load_model import load_model
from vlprune.evaluation.one_question import (
    attach_pruner,
    cost_as_json,
    decode_answer,
    describe_counts,
    join_records,
    measure_answer,
    picture_backgrounds,
    prepare_inputs,
    tokens_as_json,
    warn_of_limits,
    whole_cost,
)

DEFAULT_FRAMES = 16


def ask(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="An image (PNG, JPEG, WebP, GIF, ...) or a video (MP4, MKV, ...).")
    ],
    question: Question,
    model: ModelName = "pocket",
    method: MethodName = "script",
    keep: Annotated[
        str | None,
        typer.Option(
            "--keep",
            help=f"{KEEP_HELP} If not said: 64, or what the preset says.",
        ),
    ] = None,
    per_tile: Annotated[
        int | None, typer.Option(min=1, help="In place of --keep: tokens to keep of each tile of an image.")
    ] = None,
    per_frame: Annotated[
        int | None, typer.Option(min=1, help="In place of --keep: tokens to keep of each frame of a video.")
    ] = None,
    compete: Annotated[
        bool, typer.Option("--compete", help="Let tiles or frames compete for the sum of their quotas.")
    ] = False,
    preset: Annotated[
        str | None, typer.Option(help="Published settings of the method by name; --keep and --set go before them.")
    ] = None,
    settings: Settings = None,
    clip: ClipName = None,
    frames: Annotated[int | None, typer.Option(min=1, help="Frames to take of a video; 16 if not said.")] = None,
    show: Annotated[Path | None, typer.Option(help="Write a picture of what was kept, and why.")] = None,
    force: Force = False,
    max_new_tokens: MaxNewTokens = 64,
    device: Device = "auto",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Ask about an image or a video, with only the tokens that the question needs."""
    from vlprune.media.video import VIDEO_ENDINGS

    video = path.suffix.lower() in VIDEO_ENDINGS
    if frames is not None and not video:
        raise UserError(f"--frames {frames} goes with a video, whose name ends in {', '.join(VIDEO_ENDINGS)}.")
    budget = parse_quota(keep, per_tile, per_frame, compete, video)
    check_question(question)
    target = check_picture_path(show, path, model, clip, force=force) if show is not None else None
    image = None if video else read_image(path)
    with show_steps(f"loading {model}", quiet=as_json) as steps:
        shown = image or read_video(path, frames or DEFAULT_FRAMES, steps)
        steps.begin(f"loading {model}")
        chosen = parse_method(method, budget, settings, preset)
        loaded = load_model(model, clip, device, video=video)
        inputs = prepare_inputs(loaded, shown, question)
        with attach_pruner(loaded, chosen, question) as pruner, steps.follow(loaded.model):
            run = measure_answer(loaded, pruner, inputs, max_new_tokens=max_new_tokens)
    answer, record = decode_answer(loaded, run), join_records(pruner.records)
    warn_of_limits(loaded, shown, question, answer)
    if target is not None:
        background = picture_backgrounds(loaded, inputs, shown, record)
        write_picture(target, background, [record], titles=[f"{question} → {answer or '(nothing)'}"])
    if as_json:
        found = {"question": question, "answer": answer, "model": model, "method": chosen.name, "preset": preset}
        found["keep"] = keep if "+" in method else _keep_as_json(chosen.keep, video)
        print(json.dumps({**found, "tokens": tokens_as_json(record), "cost": cost_as_json(run)}, indent=2))
        return
    from vlprune.cli.tables import cost_table, median_costs

    console().print(answer or "(nothing)", markup=False, highlight=False)
    print(describe_counts(pruner.records))
    whole = (f"all {record.before}, by formula", whole_cost(loaded, run, record))
    console().print(cost_table([whole, (f"{record.after} of {record.before}", median_costs([run]))], wide=wide))
    if target is not None:
        print(f"wrote {target}")


def parse_quota(
    keep: str | None, per_tile: int | None, per_frame: int | None, compete: bool, video: bool
) -> str | Budget | None:
    """The budget of --per-tile, --per-frame and --compete, or else `keep` as it is; contradictions are refused."""
    name, quota, other, odd = ("tile", per_tile, "frame", per_frame)
    if video:
        name, quota, other, odd = other, odd, name, quota
    if odd is not None:
        raise UserError(f"--per-{other} {odd} is not for {'a video' if video else 'an image'}: say --per-{name}.")
    if quota is None and compete:
        raise UserError("--compete goes with --per-tile or --per-frame; with --keep, tiles and frames always compete.")
    if quota is None:
        return keep
    if keep is not None:
        raise UserError(f"--keep {keep} and --per-{name} {quota} contradict each other: pass one of them.")
    # some models take the frames of a video for images, each with one tile
    return Budget(per_tile=quota, per_frame=quota if video else None, compete=compete)


def _keep_as_json(keep: int | float | Budget, video: bool) -> Any:
    """A budget, for JSON."""
    if not isinstance(keep, Budget):
        return keep
    name = "per_frame" if video else "per_tile"
    return {name: getattr(keep, name), "compete": keep.compete}

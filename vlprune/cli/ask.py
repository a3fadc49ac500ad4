"""`vlprune ask`: one question about an image or a video."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlprune.budget import Budget
from vlprune.cli.files import check_picture_path, read_image, read_video, write_picture
from vlprune.cli.options import (
    AsJson,
    Device,
    EncoderName,
    Force,
    Keep,
    MaxNewTokens,
    MethodName,
    ModelName,
    Question,
    Wide,
    check_question,
    format_keep,
    parse_method,
)
from vlprune.cli.terminal import console, print_text, show_steps
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

if TYPE_CHECKING:
    from vlprune.methods import Method

DEFAULT_FRAMES = 16


def ask(
    path: Annotated[
        Path, typer.Argument(metavar="FILE", help="An image (PNG, JPEG, WebP, GIF, ...) or a video (MP4, MKV, ...).")
    ],
    question: Question,
    model: ModelName = "pocket",
    method: MethodName = "script",
    keep: Keep = None,
    dual_encoder: EncoderName = None,
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
    check_question(question)
    target = check_picture_path(show, path, model, dual_encoder, force=force) if show is not None else None
    image = None if video else read_image(path)
    with show_steps(f"loading {model}", quiet=as_json) as steps:
        shown = image or read_video(path, frames or DEFAULT_FRAMES, steps)
        steps.begin(f"loading {model}")
        chosen = parse_method(method, keep)
        shown_method = fit_to_kind(chosen, video)
        loaded = load_model(model, dual_encoder, device, video=video)
        inputs = prepare_inputs(loaded, shown, question)
        with attach_pruner(loaded, shown_method, question) as pruner, steps.follow(loaded.model):
            run = measure_answer(loaded, pruner, inputs, max_new_tokens=max_new_tokens)
        answer, record = decode_answer(loaded, run), join_records(pruner.records)
        if target is not None:
            from vlprune.show import picture_title

            steps.begin("drawing")
            background = picture_backgrounds(loaded, inputs, shown, record)
            title = picture_title(question, answer, f"{method}, {record.after:,} of {record.before:,} tokens")
            write_picture(target, background, [record], titles=[title])
    warn_of_limits(loaded, shown, question, answer)
    if as_json:
        found = {"question": question, "answer": answer, "model": model, "method": method, "keep": format_keep(chosen)}
        print(json.dumps({**found, "tokens": tokens_as_json(record), "cost": cost_as_json(run)}, indent=2))
        return
    from vlprune.cli.tables import cost_table, median_costs

    print_text(answer or "(nothing)")
    print_text(describe_counts(pruner.records))
    whole = (f"all {record.before}, by formula", whole_cost(loaded, run, record))
    console().print(cost_table([whole, (f"{record.after} of {record.before}", median_costs([run]))], wide=wide))
    if target is not None:
        print(f"wrote {target}")


def fit_to_kind(method: Method, video: bool) -> Method:
    """The method with its quota for what is shown; one for tiles is refused for a video, one for frames for an image.

    Some models take the frames of a video for images, each with one tile, so that quotas for frames are for both.
    """
    from vlprune.methods.in_llm import TwoStage

    if isinstance(method, TwoStage):
        return fit_to_kind(method.first, video) + fit_to_kind(method.then, video)
    keep = method.keep
    if not isinstance(keep, Budget):
        return method
    if video and keep.per_tile is not None:
        raise UserError(f"--keep {keep.per_tile}/tile is not for a video: say {keep.per_tile}/frame.")
    if not video and keep.per_frame is not None:
        raise UserError(f"--keep {keep.per_frame}/frame is not for an image: say {keep.per_frame}/tile.")
    return replace(method, keep=replace(keep, per_tile=keep.per_frame)) if keep.per_frame is not None else method

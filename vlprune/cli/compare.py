"""`vlprune compare`: all methods on one image and question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vlprune.cli.files import check_picture_path, read_image, write_picture
from vlprune.cli.options import (
    DEFAULT_KEEP,
    AsJson,
    ClipName,
    Device,
    Force,
    Keep,
    MaxNewTokens,
    ModelName,
    Question,
    Wide,
    check_question,
    parse_keep,
    parse_method,
    split_list,
)
from vlprune.cli.terminal import console, show_steps
from vlprune.errors import UserError
from vlprune.evaluation.load_model import load_model
from vlprune.evaluation.one_question import picture_backgrounds, prepare_inputs, warn_of_limits


def compare(
    path: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image (PNG, JPEG, WebP, GIF, ...).")],
    question: Question,
    model: ModelName = "pocket",
    keep: Keep = str(DEFAULT_KEEP),
    names: Annotated[
        str | None, typer.Option("--methods", metavar="A,B,...", help="Which methods; all of them if not said.")
    ] = None,
    clip: ClipName = None,
    show: Annotated[Path, typer.Option(help="Where the picture of what each method keeps goes.")] = Path(
        "vlprune-compare.png"
    ),
    repeats: Annotated[int, typer.Option(min=1, help="How often each method is timed; the medians count.")] = 3,
    force: Force = False,
    max_new_tokens: MaxNewTokens = 64,
    device: Device = "auto",
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """See all methods side by side on one image and question.

    Prints what each answers, how many tokens it keeps and what it takes, and writes a picture of what each keeps. A
    method that cannot run on the model is listed with the reason.
    """
    check_question(question)
    if names is not None and not split_list(names):
        raise UserError("--methods is empty: name some, with commas between, or leave it out for all.")
    target = check_picture_path(show, path, model, clip, force=force)
    image = read_image(path)
    with show_steps(f"loading {model}", quiet=as_json) as steps:
        from vlprune.evaluation.compare import compare_methods
        from vlprune.methods import list_methods

        wanted = list_methods() if names is None else split_list(names)
        methods = [parse_method(name, keep, listed=True) for name in dict.fromkeys(wanted)]
        loaded = load_model(model, clip, device)
        inputs = prepare_inputs(loaded, image, question)
        steps.begin("answering", total=1 + len(methods))
        options = {"repeats": repeats, "max_new_tokens": max_new_tokens}
        results = compare_methods(loaded, methods, inputs, question, tick=steps.advance, **options)
    plain, *others = results
    warn_of_limits(loaded, image, question, plain.answer)
    records = {result.name: result.record for result in others if result.records}
    background = picture_backgrounds(loaded, inputs, image, next(iter(records.values())))
    titles = {result.name: result.title for result in results} | {"": plain.title}
    write_picture(target, background, records, title=question, titles=titles)
    assert plain.cost is not None
    vision = plain.cost.latency.vision
    if as_json:
        said = keep if "+" in keep else parse_keep(keep)
        found = {"question": question, "model": model, "keep": said, "vision_seconds": vision, "all": plain.to_json()}
        print(json.dumps({**found, "methods": {result.name: result.to_json() for result in others}}, indent=2))
        return
    from vlprune.cli.tables import compare_table

    console().print(compare_table(results, vision, wide=wide))
    print(f"wrote {target}")

"""`vlprune compare`: all methods on one image and question."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from vlprune.cli.files import check_picture_path, read_image, write_picture
from vlprune.cli.options import (
    METHODS_HELP,
    AsJson,
    Device,
    EncoderName,
    Force,
    Keep,
    MaxNewTokens,
    ModelName,
    Question,
    Wide,
    check_question,
    format_keep,
    parse_methods,
)
from vlprune.cli.terminal import console, show_steps
from vlprune.evaluation.load_model import load_model
from vlprune.evaluation.one_question import picture_backgrounds, prepare_inputs, warn_of_limits


def compare(
    path: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image (PNG, JPEG, WebP, GIF, ...).")],
    question: Question,
    model: ModelName = "pocket",
    names: Annotated[str, typer.Option("--methods", metavar="A,B,...", help=METHODS_HELP)] = "all",
    keep: Keep = None,
    dual_encoder: EncoderName = None,
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
    target = check_picture_path(show, path, model, dual_encoder, force=force)
    image = read_image(path)
    with show_steps(f"loading {model}", quiet=as_json) as steps:
        from vlprune.evaluation.compare import compare_methods

        listed = parse_methods(names, None if keep is None else [keep])
        methods = {name: method for name, by_keep in listed.items() for method in by_keep.values()}
        loaded = load_model(model, dual_encoder, device)
        inputs = prepare_inputs(loaded, image, question)
        steps.begin("answering", total=1 + len(methods))  # all tokens, and the methods
        options = {"repeats": repeats, "max_new_tokens": max_new_tokens}
        results = compare_methods(loaded, methods, inputs, question, tick=steps.advance, **options)
        plain, *others = results
        from vlprune.show import picture_title

        steps.begin("drawing")
        records = {result.name: result.record for result in others if result.records}
        background = picture_backgrounds(loaded, inputs, image, next(iter(records.values())))
        titles = {result.name: result.title for result in results} | {"": plain.title}
        title = picture_title(question, plain.answer, f"all {plain.accounting.entering:,} tokens")
        write_picture(target, background, records, title=title, titles=titles)
    warn_of_limits(loaded, image, question, plain.answer)
    assert plain.cost is not None
    vision = plain.cost.latency.vision
    if as_json:
        found = {"question": question, "model": model, "vision_seconds": vision, "all": plain.to_json()}
        told = {one.name: {"keep": format_keep(methods[one.name]), **one.to_json()} for one in others}
        print(json.dumps({**found, "methods": told}, indent=2))
        return
    from vlprune.cli.tables import compare_table

    console().print(compare_table(results, vision, wide=wide))
    print(f"wrote {target}")

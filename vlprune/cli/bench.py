"""`vlprune bench`: what a model's answers cost with all tokens and with few."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlprune.budget import Budget
from vlprune.errors import UserError
from vlprune.evaluation.load_model import load

if TYPE_CHECKING:
    from vlprune.methods import Method

QUESTION = "what is to be seen in this image?"


def bench(
    model: Annotated[
        str, typer.Option("--model", help="pocket, a folder, a hub id, or with --random-weights an architecture.")
    ] = "pocket",
    random_weights: Annotated[
        bool,
        typer.Option("--random-weights", help="Build the published architecture of that name, without a checkpoint."),
    ] = False,
    methods: Annotated[str, typer.Option(help="Methods, with commas: see `vlprune methods`.")] = "script",
    keep: Annotated[str | None, typer.Option(help="Numbers of tokens or ratios, with commas; 64 if not said.")] = None,
    per_tile: Annotated[int | None, typer.Option(min=1, help="Also: tokens to keep of each tile.")] = None,
    per_frame: Annotated[int | None, typer.Option(min=1, help="Also: tokens to keep of each frame.")] = None,
    text: Annotated[int, typer.Option(min=2, help="Words around the image, with --random-weights.")] = 64,
    new: Annotated[int, typer.Option(min=1, help="New tokens.")] = 32,
    batch: Annotated[int, typer.Option(min=1, help="Rows, with --random-weights.")] = 1,
    graphs: Annotated[bool, typer.Option("--graphs", help="Run the LLM as CUDA graphs, in all rows.")] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="The same, its layers compiled first.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="How often each row is timed.")] = 10,
    clip: Annotated[
        str | None, typer.Option(help="A CLIP or SigLIP that the model was built on, for relevance.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...; a GPU where there is one.")] = "auto",
    out_json: Annotated[Path | None, typer.Option("--json", help="Write all figures there.")] = None,
    out_markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the table there.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there already.")] = False,
) -> None:
    """Measure what pruning saves: tokens, operations, milliseconds, memory."""
    from vlprune.cli.app import output_path
    from vlprune.errors import UnsupportedModel

    for path in (out_json, out_markdown):
        if path is not None:
            output_path(path, model, clip, force=force)
    chosen = _methods(methods, keep, per_tile, per_frame)
    way: bool | str = "compile" if compiled else graphs
    try:
        if random_weights:
            report = _run(chosen, way, new, repeats, model, *_random(model, text, batch, device))
        else:
            report = _run(chosen, way, new, repeats, model, *_loaded(model, clip, device))
    except UnsupportedModel as error:
        raise UserError(f"--model {model}: {error}") from error
    from vlprune.cli.app import _console

    _console().print(report.to_table())
    if out_json is not None:
        out_json.write_text(json.dumps(report.to_json(), indent=1) + "\n")
    if out_markdown is not None:
        out_markdown.write_text(report.to_markdown())


def _methods(names: str, keep: str | None, per_tile: int | None, per_frame: int | None) -> list[Method]:
    """Every method with every budget."""
    from vlprune.cli.app import _method

    budgets: list[str | Budget] = [part.strip() for part in (keep or "").split(",") if part.strip()]
    if per_tile is not None or per_frame is not None:
        budgets.append(Budget(per_tile=per_tile, per_frame=per_frame))
    wanted = [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise UserError(f"--methods {names}: name at least one.")
    return [_method(name, budget) for name in wanted for budget in budgets or ["64"]]


def _random(name: str, text: int, batch: int, device: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A published architecture, a prompt for it, and nothing more for `attach`."""
    from vlprune.evaluation.load_model import _device
    from vlprune.measure.architectures import architecture

    try:
        one = architecture(name)
    except ValueError as error:
        raise UserError(f"--random-weights --model {name}: {str(error).partition(': ')[2]}") from error
    model = one.build(str(_device(device)))
    return model, one.inputs(model, text, batch), {}


def _loaded(name: str, clip: str | None, device: str) -> tuple[Any, dict[str, Any], dict[str, Any]]:
    """A model with its processor, a prompt about one image, and what `attach` takes for it."""
    from vlprune.evaluation import one_question as asking

    loaded = load(name, clip, device)
    question, image = QUESTION, _noise()
    if name == "pocket":
        from vlprune import pocket
        from vlprune.pocket.render import images

        (scene,) = pocket.scenes("test", 1)
        question, image = pocket.questions(scene, ["digit"])[0].text, images([scene])[0]
    inputs = asking.prepare(loaded, image, question)
    return loaded.model, inputs, {"processor": loaded.processor, "query": question, "dual_encoder": loaded.clip}


def _noise(size: int = 672) -> Any:
    """An image in which no two patches are alike."""
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8))


def _run(
    methods: Sequence[Method],
    graphs: bool | str,
    new: int,
    repeats: int,
    name: str,
    model: Any,
    inputs: dict[str, Any],
    attaching: dict[str, Any],
) -> Any:
    import sys

    from rich.console import Console
    from rich.progress import Progress

    from vlprune.measure import efficiency as measuring

    with Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as progress:
        task = progress.add_task(f"measuring {name}", total=measuring.calls(methods, repeats))
        try:
            return measuring.bench(
                model,
                inputs,
                methods,
                name=name,
                cuda_graphs=graphs,
                new_tokens=new,
                repeats=repeats,
                tick=lambda: progress.advance(task),
                **attaching,
            )
        except ValueError as error:  # a budget or setting that does not go with this model
            raise UserError(f"--methods: {error}") from error

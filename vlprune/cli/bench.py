"""`vlprune bench`: what a model's answers cost with all tokens and with few."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from vlprune.budget import Budget
from vlprune.cli.files import check_output_path, write_text
from vlprune.cli.options import DEFAULT_KEEP, AsJson, Force, Wide, parse_method, split_list
from vlprune.cli.terminal import Steps, console, show_steps
from vlprune.errors import UserError
from vlprune.evaluation.load_model import load_model, pick_device
from vlprune.evaluation.one_question import prepare_inputs

if TYPE_CHECKING:
    from vlprune.measure.efficiency import EfficiencyReport
    from vlprune.methods import Method

#: The names in `vlprune.measure.architectures`, which takes too long to load for a help text.
ARCHITECTURE_NAMES = (
    "llava-1.5-7b",
    "llava-next-7b",
    "llava-onevision-7b",
    "llava-video-7b",
    "internvl3-8b",
    "qwen2.5-vl-7b",
)
QUESTION = "what is to be seen in this image?"


def bench(
    model: Annotated[
        str, typer.Option("--model", help="pocket, a folder, a hub id, or with --random-weights one of its names.")
    ] = "pocket",
    random_weights: Annotated[
        bool,
        typer.Option(
            "--random-weights",
            help=f"Build a published architecture without its checkpoint: {', '.join(ARCHITECTURE_NAMES)}.",
        ),
    ] = False,
    methods: Annotated[str, typer.Option(help="Methods, with commas: see `vlprune methods`.")] = "script",
    keep: Annotated[str | None, typer.Option(help="Numbers of tokens or ratios, with commas; 64 if not said.")] = None,
    per_tile: Annotated[int | None, typer.Option(min=1, help="Also: tokens to keep of each tile.")] = None,
    per_frame: Annotated[int | None, typer.Option(min=1, help="Also: tokens to keep of each frame.")] = None,
    text: Annotated[int, typer.Option(min=2, help="Words around the image, with --random-weights.")] = 64,
    new: Annotated[int, typer.Option(min=1, help="New tokens.")] = 32,
    batch: Annotated[int, typer.Option(min=1, help="Rows, with --random-weights.")] = 1,
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="Run the LLM as CUDA graphs, in all rows.")
    ] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="The same, its layers compiled first.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="How often each row is timed.")] = 10,
    clip: Annotated[
        str | None, typer.Option(help="A CLIP or SigLIP that the model was built on, for relevance.")
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, cuda:1 ...; a GPU where there is one.")] = "auto",
    out: Annotated[
        list[Path] | None,
        typer.Option(help="Write all figures to a file (.json), or the table (.md); may be repeated."),
    ] = None,
    force: Force = False,
    wide: Wide = False,
    as_json: AsJson = False,
) -> None:
    """Measure what pruning saves: tokens, operations, milliseconds, memory."""
    from vlprune.errors import UnsupportedModel

    for path in out or ():
        if path.suffix not in (".json", ".md"):
            raise UserError(f"--out {path}: its name must end in .json or .md.")
        check_output_path(path, model, clip, force=force)
    if random_weights and model not in ARCHITECTURE_NAMES:
        raise UserError(
            f"--random-weights --model {model}: no such architecture; choose from {', '.join(ARCHITECTURE_NAMES)}."
        )
    options = {"cuda_graphs": "compile" if compiled else cuda_graphs, "new_tokens": new, "repeats": repeats}
    with show_steps(f"loading {model}", quiet=as_json) as steps:
        chosen = parse_methods(methods, keep, per_tile, per_frame)
        try:
            subject = _random_model(model, text, batch, device) if random_weights else _real_model(model, clip, device)
            report = _measure(model, subject, chosen, options, steps)
        except UnsupportedModel as error:
            raise UserError(f"--model {model}: {error}") from error
    figures = json.dumps(report.to_json(), indent=1) + "\n"
    for path in out or ():
        write_text(path, figures if path.suffix == ".json" else report.to_markdown())
    if as_json:
        print(figures, end="")
        return
    console().print(report.to_table(wide=wide))
    for path in out or ():
        print(f"wrote {path}")


def parse_methods(names: str, keep: str | None, per_tile: int | None, per_frame: int | None) -> list[Method]:
    """Every method with every budget."""
    budgets: list[str | Budget] = [*split_list(keep or "")]
    if per_tile is not None or per_frame is not None:
        budgets.append(Budget(per_tile=per_tile, per_frame=per_frame))
    wanted = split_list(names)
    if not wanted:
        raise UserError(f"--methods {names}: name at least one.")
    return [parse_method(name, budget, listed=True) for name in wanted for budget in budgets or [str(DEFAULT_KEEP)]]


class _Subject(NamedTuple):
    """A model, a prompt for it, and what `attach` takes beside the method."""

    model: Any
    inputs: dict[str, Any]
    attaching: dict[str, Any]


def _random_model(name: str, text: int, batch: int, device: str) -> _Subject:
    """A published architecture with random weights."""
    from vlprune.measure.architectures import get_architecture

    one = get_architecture(name)
    model = one.build(str(pick_device(device)))
    return _Subject(model, one.inputs(model, text, batch), {})


def _real_model(name: str, clip: str | None, device: str) -> _Subject:
    """A model with its processor, and a question about one image."""
    loaded = load_model(name, clip, device)
    question, image = QUESTION, _noise()
    if name == "pocket":
        from vlprune import pocket
        from vlprune.pocket.render import images

        (scene,) = pocket.scenes("test", 1)
        question, image = pocket.questions(scene, ["digit"])[0].text, images([scene])[0]
    inputs = prepare_inputs(loaded, image, question)
    attaching = {"processor": loaded.processor, "query": question, "dual_encoder": loaded.clip}
    return _Subject(loaded.model, inputs, attaching)


def _noise(size: int = 672) -> Any:
    """An image in which no two patches are alike."""
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8))


def _measure(
    name: str, subject: _Subject, methods: Sequence[Method], options: dict[str, Any], steps: Steps
) -> EfficiencyReport:
    """The report of all methods; `steps` show how far it has come."""
    from vlprune.measure.efficiency import count_generate_calls, measure_efficiency

    model, inputs, attaching = subject
    steps.begin(f"measuring {name}", total=count_generate_calls(methods, options["repeats"]))
    try:
        return measure_efficiency(model, inputs, methods, name=name, tick=steps.advance, **options, **attaching)
    except ValueError as error:  # a budget or setting that does not go with this model
        raise UserError(f"--methods: {error}") from error

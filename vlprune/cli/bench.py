"""`vlprune bench`: what a model's answers cost with all tokens and with few."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from vlprune.cli.files import check_output_path, write_text
from vlprune.cli.options import (
    DEFAULT_KEEP,
    KEEPS_HELP,
    METHODS_HELP,
    AsJson,
    Device,
    EncoderName,
    Force,
    Wide,
    parse_methods,
    split_list,
)
from vlprune.cli.terminal import Steps, console, show_steps
from vlprune.errors import UserError
from vlprune.evaluation.load_model import load_model, pick_device
from vlprune.evaluation.one_question import prepare_inputs

if TYPE_CHECKING:
    from vlprune.measure.efficiency import EfficiencyReport
    from vlprune.methods import Method
    from vlprune.studies.efficiency import PaperEfficiency

#: The names in `vlprune.measure.architectures`, which takes too long to load for a help text.
ARCHITECTURE_NAMES = (
    "llava-1.5-7b",
    "llava-1.5-13b",
    "llava-next-7b",
    "llava-next-13b",
    "llava-onevision-7b",
    "llava-video-7b",
    "internvl3-8b",
    "qwen2.5-vl-7b",
)
#: Those of them that `vlprune.studies.efficiency` measures.
PAPER_NAMES = ARCHITECTURE_NAMES[:4]
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
    names: Annotated[str, typer.Option("--methods", metavar="A,B,...", help=METHODS_HELP)] = "script",
    keep: Annotated[str, typer.Option(help=KEEPS_HELP)] = str(DEFAULT_KEEP),
    text: Annotated[int, typer.Option(min=2, help="Words around the image, with --random-weights.")] = 64,
    new: Annotated[int, typer.Option(min=1, help="New tokens.")] = 32,
    batch: Annotated[int, typer.Option(min=1, help="Rows, with --random-weights.")] = 1,
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="Run the LLM as CUDA graphs, in all rows.")
    ] = False,
    compiled: Annotated[bool, typer.Option("--compile", help="The same, its layers compiled first.")] = False,
    repeats: Annotated[int, typer.Option(min=1, help="How often each row is timed.")] = 10,
    dual_encoder: EncoderName = None,
    paper: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The paper's efficiency table instead, its methods and figures beside ours, for a model of random "
            f"weights on a GPU: {', '.join(PAPER_NAMES)}.",
        ),
    ] = None,
    accuracy: Annotated[
        Path | None, typer.Option(metavar="RUN", help="With --paper: the folder of a finished `vlprune eval`.")
    ] = None,
    device: Device = "auto",
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
        check_output_path(path, model, dual_encoder, accuracy, force=force)
    if accuracy is not None and paper is None:
        raise UserError(f"--accuracy {accuracy} goes with --paper.")
    if paper is not None:
        told = (model, random_weights, names, keep, batch, dual_encoder)
        _check_paper(paper, alone=told == ("pocket", False, "script", str(DEFAULT_KEEP), 1, None))
    if random_weights and model not in ARCHITECTURE_NAMES:
        raise UserError(
            f"--random-weights --model {model}: no such architecture; choose from {', '.join(ARCHITECTURE_NAMES)}."
        )
    options = {"cuda_graphs": "compile" if compiled else cuda_graphs, "new_tokens": new, "repeats": repeats}
    report: EfficiencyReport | PaperEfficiency
    with show_steps(f"loading {paper or model}", quiet=as_json) as steps:
        if paper is not None:
            report = _measure_paper(paper, text, accuracy, device, options, steps)
        else:
            listed = parse_methods(names, split_list(keep) or [keep])
            chosen = {f"{name}, keep={said}": one for name, by_keep in listed.items() for said, one in by_keep.items()}
            try:
                if random_weights:
                    subject = _random_model(model, text, batch, device)
                else:
                    subject = _real_model(model, dual_encoder, device)
                report = _measure(model, subject, chosen, options, steps)
            except UnsupportedModel as error:
                raise UserError(f"--model {model}: {error}") from error
    _show(report, out or [], wide, as_json)


def _show(report: EfficiencyReport | PaperEfficiency, out: list[Path], wide: bool, as_json: bool) -> None:
    """Write the report's files, and print its table, or all of it as JSON."""
    figures = json.dumps(report.to_json(), indent=1) + "\n"
    for path in out:
        write_text(path, figures if path.suffix == ".json" else report.to_markdown())
    if as_json:
        print(figures, end="")
        return
    console().print(report.to_table(wide=wide))
    for path in out:
        print(f"wrote {path}")


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


def _real_model(name: str, dual_encoder: str | None, device: str) -> _Subject:
    """A model with its processor, and a question about one image."""
    loaded = load_model(name, dual_encoder, device)
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
    name: str, subject: _Subject, methods: Mapping[str, Method], options: dict[str, Any], steps: Steps
) -> EfficiencyReport:
    """The report of all methods; `steps` show how far it has come."""
    from vlprune.measure.efficiency import count_generate_calls, measure_efficiency

    model, inputs, attaching = subject
    steps.begin(f"measuring {name}", total=count_generate_calls(methods, options["repeats"]))
    try:
        return measure_efficiency(model, inputs, methods, name=name, tick=steps.advance, **options, **attaching)
    except ValueError as error:  # a budget or setting that does not go with this model
        raise UserError(f"--methods: {error}") from error


def _check_paper(name: str, alone: bool) -> None:
    """Refuse a model that the table is not for, and options that it does not take."""
    if name not in PAPER_NAMES:
        raise UserError(f"--paper {name}: choose from {', '.join(PAPER_NAMES)}.")
    if not alone:
        raise UserError(
            f"--paper {name} has its own model, methods and budgets: leave out --model, --random-weights, --methods, "
            "--keep, --batch and --dual-encoder."
        )


def _measure_paper(
    name: str, text: int, accuracy: Path | None, device: str, options: dict[str, Any], steps: Steps
) -> PaperEfficiency:
    """The paper's table for one model; `steps` show how far it has come."""
    from vlprune.studies.efficiency import count_calls, measure_paper_table, read_accuracy

    found = read_accuracy(accuracy, name) if accuracy is not None else None
    steps.begin(f"measuring {name}", total=count_calls(name, options["repeats"]))
    return measure_paper_table(
        name, device=str(pick_device(device)), text=text, accuracy=found, tick=steps.advance, **options
    )

"""The program `vlprune`. Only typer loads at the start: everything heavy loads inside the command that needs it."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from vlprune import asking
from vlprune.asking import decoded
from vlprune.loading import UserError, load

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console

    from vlprune.methods import Method
    from vlprune.record import Record

PICTURES = (".png", ".pdf", ".svg", ".jpg")

app = typer.Typer(
    name="vlprune",
    help="Drop the visual tokens that a question does not need, before the LLM pays for them.",
    epilog="Start with `vlprune demo`; then try an image of yours: vlprune ask photo.png 'what is it?' --show kept.png",
    add_completion=False,
    rich_markup_mode=None,  # rich takes longer to load than all the rest of --help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


# typer brings its own copy of click in newer versions, so click's errors are reached through typer's
_UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the program and exit: 0 for success, 2 with one sentence for what the user can put right.

    >>> main(["--version"])
    Traceback (most recent call last):
    ...
    SystemExit: 0
    """
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows "?", and does not fail
    try:
        code = app(args=given, prog_name="vlprune", standalone_mode=False)
    except UserError as error:
        sentence, code = str(error), 2
    except _UsageError as error:
        sentence, code = _usage_sentence(error), 2
    except (KeyboardInterrupt, typer.Abort):
        sentence, code = "stopped.", 130
    else:
        sys.exit(code if isinstance(code, int) else 0)
    print(f"vlprune: {' '.join(sentence.split())}", file=sys.stderr)
    sys.exit(code)


def _usage_sentence(error: Any) -> str:
    """What click has to say, with the nearest name for an unknown option or command."""
    from difflib import get_close_matches

    message = str(error.format_message()) or "there is something missing; try --help."
    context = getattr(error, "ctx", None)
    unknown = re.match(r"No such (option|command):? '?([^\s']+)", message)
    if unknown is None or context is None:
        return message if message.endswith(".") else f"{message}."
    kind, name = unknown.groups()
    if kind == "option":
        known = [option for parameter in context.command.params for option in parameter.opts if option[:2] == "--"]
    else:
        known = list(context.command.commands)
    near = get_close_matches(name, known, n=1, cutoff=0.4)
    return f"no such {kind}: {name}; " + (f"did you mean {near[0]}?" if near else f"choose from {', '.join(known)}.")


def _version(wanted: bool) -> None:
    if wanted:
        from vlprune import __version__

        print(f"vlprune {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


# --- options that commands share ------------------------------------------------------------------------------------

MethodName = Annotated[str, typer.Option("--method", help="How tokens are chosen: see `vlprune methods`.")]
Keep = Annotated[str, typer.Option("--keep", help="Tokens to keep per image: a number (64) or a ratio (0.1).")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method, such as tau=0.2; may be repeated."),
]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1 ...; a GPU where there is one.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def _keep(text: str) -> int | float:
    """A number of tokens ("64") or a ratio ("0.1")."""
    if re.fullmatch(r"[+-]?\d{1,12}", text.strip()):
        number = int(text)
        if number <= 0:
            raise UserError(f"--keep {text}: at least one token must be kept.")
        return number
    try:
        ratio = float(text)
    except ValueError:
        raise UserError(f"--keep {text}: pass a number of tokens (64) or a ratio (0.1).") from None
    if not 0 < ratio <= 1:
        raise UserError(f"--keep {text}: a ratio must lie above 0 and not above 1.")
    return ratio


def _settings(pairs: Sequence[str] | None) -> dict[str, Any]:
    """`["tau=0.2", "fusion=filter"]` as a dictionary, numbers as numbers."""
    import ast

    found: dict[str, Any] = {}
    for pair in pairs or ():
        name, sign, value = pair.partition("=")
        if not sign or not name:
            raise UserError(f"--set {pair}: write it as NAME=VALUE.")
        try:
            found[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            found[name] = value
    if "keep" in found:
        raise UserError("--set keep: use --keep.")
    return found


def _method(name: str, keep: int | float, settings: dict[str, Any]) -> Method:
    from vlprune.methods import get_method, list_methods

    if name not in list_methods():
        raise UserError(f"--method {name}: no such method; {_nearest(name, list_methods())}")
    usual = get_method(name)
    for setting, value in settings.items():
        kind = type(getattr(usual, setting, None))
        wanted = {int: "a whole number", float: "a number", str: "a word"}.get(kind)
        fits = isinstance(value, (int, float) if kind is float else kind) and not isinstance(value, bool)
        if wanted is not None and not fits:
            raise UserError(f"--set {setting}={value}: it must be {wanted}.")
    try:
        return get_method(name, keep=keep, **settings)
    except ValueError as error:
        raise UserError(f"--set {error}") from error


def _nearest(word: str, words: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, words, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(words)}."


def _picture_path(path: Path) -> Path:
    """Refuse a picture that could not be written before any work is done for it."""
    if path.suffix.lower() not in PICTURES:
        raise UserError(f"{str(path)!r}: a picture's name must end in {', '.join(PICTURES)}.")
    if not path.parent.is_dir():
        raise UserError(f"{str(path)!r}: there is no folder {str(path.parent)!r}.")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"{str(path)!r} cannot be written.")
    return path


# --- asking ---------------------------------------------------------------------------------------------------------


@app.command()
def ask(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="A PNG, JPEG, WebP, GIF, BMP, TIFF or PPM file.")],
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What to ask about it.")],
    model: Annotated[str, typer.Option(help="pocket, a folder, or the id of a LLaVA-1.5 model on the hub.")] = "pocket",
    method: MethodName = "script",
    keep: Keep = "64",
    settings: Settings = None,
    clip: Annotated[
        str | None, typer.Option(help="A CLIP (folder or hub id) that the model was built on, for relevance.")
    ] = None,
    show: Annotated[Path | None, typer.Option(help="Write a picture of what was kept, and why.")] = None,
    max_new_tokens: Annotated[int, typer.Option(min=1, help="The longest answer.")] = 64,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Ask about an image, with only the tokens that the question needs."""
    from vlprune.show.image import ImageError, open_image

    budget, options = _keep(keep), _settings(settings)
    if not question.strip():
        raise UserError("the question is empty.")
    target = _picture_path(show) if show is not None else None
    try:
        opened = open_image(image)
    except ImageError as error:
        raise UserError(str(error)) from error
    chosen = _method(method, budget, options)
    loaded = load(model, clip, device)
    inputs = asking.prepare(loaded, opened, question)
    visual = asking.visual_tokens(loaded, inputs, chosen)

    from vlprune.measure import measure_generate

    with asking.prune(loaded, chosen, question) as pruner:
        run = measure_generate(loaded.model, inputs, pruner=pruner, max_new_tokens=max_new_tokens)
    answer = decoded(loaded, run)
    if target is not None:
        from vlprune.show import as_seen

        seen = as_seen(inputs["pixel_values"][0], loaded.processor)
        _save(target, seen, [pruner.last], titles=[f"{question} → {answer}"])
    if as_json:
        found = {"question": question, "answer": answer, "model": model, "method": chosen.name, "keep": budget}
        print(json.dumps({**found, "tokens": asking.chosen(pruner.last), "cost": asking.cost(run)}, indent=2))
        return
    from vlprune.show.tables import cost_table, figures

    console = _console()
    console.print(answer, markup=False, highlight=False)
    whole = asking.whole_cost(loaded, run, visual)
    ways = (f"all {visual}, by formula", f"{run.visual_tokens} of {visual}")
    console.print(cost_table([(ways[0], whole), (ways[1], figures([run]))]))
    if target is not None:
        print(f"wrote {target}")


def _save(path: Path, image: Image.Image, records: list[Record], **options: Any) -> None:
    from vlprune.show import save_picture

    try:
        save_picture(path, image, records, **options)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written ({error.strerror or error}).") from error


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120)


# --- the demo -------------------------------------------------------------------------------------------------------


@app.command()
def demo(
    scene: Annotated[int, typer.Option(min=0, help="Which scene of the test split to draw.")] = 0,
    method: MethodName = "script",
    keep: Keep = "64",
    settings: Settings = None,
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("vlprune-demo.png"),
    repeats: Annotated[int, typer.Option(min=1, help="How often each question is timed.")] = 3,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """See it at work on the model that comes with vlprune.

    Draws a scene, asks about it with all tokens and with few, prints answers and costs, and writes a picture of what
    was kept, and why.
    """
    budget, options = _keep(keep), _settings(settings)
    target = _picture_path(out)
    chosen = _method(method, budget, options)
    loaded = load("pocket", None, device)

    from vlprune.demo import run_demo

    shown = run_demo(loaded, chosen, scene, repeats)
    _save(target, **shown.picture())
    if as_json:
        found = {"scene": shown.scene.name, "method": chosen.name, "keep": budget}
        print(json.dumps({**found, "questions": [asked.facts() for asked in shown.asked]}, indent=2))
        return
    from vlprune.show.tables import answer_table, cost_table, figures

    console = _console()
    questions = [(asked.question.text, asked.question.answer) for asked in shown.asked]
    runs = [asked.runs for asked in shown.asked]
    ways = (f"all {shown.visual}", f"{runs[0][1].visual_tokens} of {shown.visual}")
    console.print(answer_table(questions, [asked.answers for asked in shown.asked], ways))
    console.print(cost_table([(title, figures([pair[i] for pair in runs])) for i, title in enumerate(ways)]))
    print(f"wrote {target}")


# --- lists ----------------------------------------------------------------------------------------------------------


@app.command()
def methods() -> None:
    """List the methods and their settings."""
    from dataclasses import fields

    from rich.table import Table

    from vlprune.methods import get_method, list_methods

    table = Table(show_lines=True)
    for title in ("method", "what it does", "settings (--set)"):
        table.add_column(title, no_wrap=title == "method")
    for name in list_methods():
        method = get_method(name)
        settings = [f"{field.name}={getattr(method, field.name)}" for field in fields(method) if field.name != "keep"]
        table.add_row(name, (type(method).__doc__ or "").split("\n\n")[0].strip(), ", ".join(settings) or "none")
    _console().print(table)


@app.command()
def models() -> None:
    """List the model families that can be pruned."""
    from rich.table import Table

    from vlprune.models import list_families

    table = Table(show_lines=True)
    for title in ("family", "classes", "what is pruned", "positions", "relevance", "tested with"):
        table.add_column(title, no_wrap=title in ("family", "classes", "positions"))
    for family in list_families():
        classes = "\n".join(family.classes) or "any other with image placeholders"
        positions = "\n".join(family.positions)
        table.add_row(family.name, classes, family.prunes, positions, family.relevance, family.tested)
    _console().print(table)
    print("--model takes 'pocket' (comes with vlprune), a folder, or a hub id, such as llava-hf/llava-1.5-7b-hf.")

"""The program `vlprune`. Only typer loads at the start: everything heavy loads inside the command that needs it."""

from __future__ import annotations

import io
import json
import re
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from operator import add
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, Union

import typer

from vlprune.budget import Budget
from vlprune.cli.bench import bench
from vlprune.errors import UserError
from vlprune.evaluation import one_question as asking
from vlprune.evaluation.load_model import load
from vlprune.evaluation.one_question import decoded

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console
    from rich.progress import Progress

    from vlprune.media.video import Clip
    from vlprune.methods import Method

PICTURES = (".png", ".pdf", ".svg", ".jpg")
FRAMES = 16
KEEP = 64

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
    said: set[str] = set()

    def say(message: Warning | str, *where: Any, **more: Any) -> None:
        """Our own warnings, each once; those of libraries are for programmers."""
        if str(message).startswith("vlprune: ") and str(message) not in said:
            said.add(str(message))
            print(message, file=sys.stderr)

    try:
        with warnings.catch_warnings():
            warnings.showwarning = say
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
        from vlprune.version import __version__

        print(f"vlprune {__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None: ...


# --- options that commands share ------------------------------------------------------------------------------------

MethodName = Annotated[
    str, typer.Option("--method", help="How tokens are chosen: see `vlprune methods`; two may be joined by +.")
]
Keep = Annotated[
    str,
    typer.Option(
        "--keep",
        help="Tokens to keep per image or video: a number (64), a ratio (0.1), or 64~0.05: 64 on average, "
        "as long as a token adds 0.05 of what the first added.",
    ),
]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method, such as tau=0.2; may be repeated."),
]
ModelName = Annotated[
    str, typer.Option("--model", help="pocket, a folder, or the id of a model on the hub: see `vlprune models`.")
]
Question = Annotated[str, typer.Argument(metavar="QUESTION", help="What to ask about it.")]
ClipName = Annotated[
    str | None,
    typer.Option("--clip", help="A CLIP or SigLIP (folder or hub id) that the model was built on, for relevance."),
]
Longest = Annotated[int, typer.Option("--max-new-tokens", min=1, help="The longest answer.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1 ...; a GPU where there is one.")]
Force = Annotated[
    bool, typer.Option("--force", help="Replace an output file that is there already, also one of another program.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def _keep(text: str) -> int | float | Budget:
    """A number of tokens ("64"), a ratio ("0.1"), or a mean and when it is enough ("64~0.05")."""
    mean, tilde, share = text.partition("~")
    if tilde:
        try:
            return Budget(adaptive=float(share), mean=int(mean))
        except (ValueError, TypeError) as error:
            raise UserError(f"--keep {text}: a mean and a share, as in 64~0.05 ({error}).") from None
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


def _method(
    name: str, keep: str | Budget | None, pairs: Sequence[str] | None = None, preset: str | None = None
) -> Method:
    """The method that the options describe; "script+fastv" is one before the LLM and then one inside it.

    Each of these takes the settings that it has. What `keep` does not say, a preset may; else it is 64.
    """
    names = name.split("+")
    if len(names) > 1 and preset is not None:
        raise UserError(f"--preset {preset} goes with one method, but --method {name} names {len(names)}.")
    keeps = keep.split("+") if isinstance(keep, str) and len(names) > 1 else [keep]
    if len(keeps) != len(names):
        raise UserError(f"--method {name}: say what each of them is to keep, such as --keep 192+64.")
    budgets = [_keep(part) if isinstance(part, str) else part for part in keeps]
    settings = _settings(names, pairs)
    made = [_one_method(one, budget, own, preset) for one, budget, own in zip(names, budgets, settings)]
    try:
        return reduce(add, made)
    except TypeError:
        raise UserError(
            f"--method {name}: with + the first method must choose before the LLM, and the second one inside it."
        ) from None


def _one_method(name: str, keep: int | float | Budget | None, settings: dict[str, Any], preset: str | None) -> Method:
    from vlprune.methods import get_method

    presets = type(get_method(name)).presets
    if preset is not None and preset not in presets:
        hint = _nearest(preset, list(presets)) if presets else "it has none."
        raise UserError(f"--preset {preset}: {name} has no such preset; {hint}")
    given = {} if keep is None else {"keep": keep}
    if keep is None and "keep" not in presets.get(preset or "", {}):
        given = {"keep": KEEP}
    try:
        return get_method(name, preset=preset, **given, **settings)
    except ValueError as error:
        blamed = str(error).partition("=")[0]
        option = "--set" if preset is None or blamed in settings else f"--preset {preset}:"
        raise UserError(f"{option} {error}") from error


def _settings(names: Sequence[str], pairs: Sequence[str] | None) -> list[dict[str, Any]]:
    """`["tau=0.2", "layer=3"]` as a dictionary for each of the methods, each value of its field's type."""
    from dataclasses import fields
    from typing import get_type_hints

    from vlprune.methods import get_method, list_methods

    for name in names:
        if name not in list_methods():
            raise UserError(f"--method {name}: no such method; {_nearest(name, list_methods())}")
    kinds = [type(get_method(name)) for name in names]
    known = {field.name for kind in kinds for field in fields(kind)} - {"keep"}
    found: list[dict[str, Any]] = [{} for _ in names]
    for pair in pairs or ():
        setting, sign, text = pair.partition("=")
        if not sign or not setting:
            raise UserError(f"--set {pair}: write it as NAME=VALUE.")
        if setting == "keep":
            raise UserError("--set keep: use --keep.")
        if setting not in known:
            hint = _nearest(setting, sorted(known)) if known else "it has none."
            raise UserError(f"--set {pair}: {' and '.join(names)} has no such setting; {hint}")
        for kind, own in zip(kinds, found):
            if setting in {field.name for field in fields(kind)}:
                own[setting] = _typed(pair, text, get_type_hints(kind)[setting])
    return found


def _typed(pair: str, text: str, hint: Any) -> Any:
    """A setting's text as a value of its field's type."""
    from typing import get_args, get_origin

    kinds = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    word = text.strip().lower()
    if type(None) in kinds and word == "none":
        return None
    for kind in kinds:
        if kind is bool and word in ("true", "false"):
            return word == "true"
        if kind in (int, float):
            with suppress(ValueError):
                return kind(text)
        if get_origin(kind) is tuple:
            return tuple(_typed(pair, part, get_args(kind)[0]) for part in word.strip("()").split(",") if part)
        if kind is str:
            return text
    says = {bool: "true or false", int: "a whole number", float: "a number", type(None): "none"}
    raise UserError(f"--set {pair}: it must be {' or '.join(says.get(kind, str(kind)) for kind in kinds)}.")


def _nearest(word: str, words: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(word, words, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(words)}."


def output_path(path: Path, *inputs: str | Path | None, force: bool) -> Path:
    """Refuse a file that could not or must not be written, before any work is done for it."""
    from vlprune.media.outputs import OutputError, check_output

    try:
        return check_output(path, inputs=[source for source in inputs if source is not None], force=force)
    except OutputError as error:
        raise UserError(str(error)) from error


def _picture_path(path: Path, *inputs: str | Path | None, force: bool) -> Path:
    if path.suffix.lower() not in PICTURES:
        raise UserError(f"{str(path)!r}: a picture's name must end in {', '.join(PICTURES)}.")
    return output_path(path, *inputs, force=force)


# --- asking ---------------------------------------------------------------------------------------------------------


@app.command()
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
            help="Tokens to keep per image or video: a number or a ratio (0.1); 64, or the preset's, if not said.",
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
    max_new_tokens: Longest = 64,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Ask about an image or a video, with only the tokens that the question needs."""
    from vlprune.media.video import ENDINGS

    video = path.suffix.lower() in ENDINGS
    if frames is not None and not video:
        raise UserError(f"--frames {frames} goes with a video, whose name ends in {', '.join(ENDINGS)}.")
    budget = _budget(keep, per_tile, per_frame, compete, video)
    if not question.strip():
        raise UserError("the question is empty.")
    target = _picture_path(show, path, model, clip, force=force) if show is not None else None
    shown = _video(path, frames or FRAMES) if video else _image(path)
    chosen = _method(method, budget, settings, preset)
    loaded = load(model, clip, device, video=video)
    inputs = asking.prepare(loaded, shown, question)
    with asking.prune(loaded, chosen, question) as pruner:
        run = asking.measured(loaded, pruner, inputs, max_new_tokens=max_new_tokens)
    answer, record = decoded(loaded, run), asking.together(pruner.records)
    if target is not None:
        _save(target, asking.views(loaded, inputs, shown, record), [record], titles=[f"{question} → {answer}"])
    if as_json:
        found = {"question": question, "answer": answer, "model": model, "method": chosen.name, "preset": preset}
        found["keep"] = keep if "+" in method else _said(chosen.keep, video)
        print(json.dumps({**found, "tokens": asking.chosen(record), "cost": asking.cost(run)}, indent=2))
        return
    from vlprune.cli.tables import cost_table, figures

    console = _console()
    console.print(answer, markup=False, highlight=False)
    print(asking.counts(pruner.records))
    ways = (f"all {record.before}, by formula", f"{record.after} of {record.before}")
    whole = asking.whole_cost(loaded, run, record)
    console.print(cost_table([(ways[0], whole), (ways[1], figures([run]))]))
    if target is not None:
        print(f"wrote {target}")


def _budget(
    keep: str | None, per_tile: int | None, per_frame: int | None, compete: bool, video: bool
) -> str | Budget | None:
    """What the options say of how many tokens to keep, None if nothing; what contradicts itself is refused."""
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


def _said(keep: int | float | Budget, video: bool) -> Any:
    """A budget, for JSON."""
    if not isinstance(keep, Budget):
        return keep
    name = "per_frame" if video else "per_tile"
    return {name: getattr(keep, name), "compete": keep.compete}


def _image(path: Path) -> Image.Image:
    from vlprune.media.image import ImageError, open_image

    try:
        return open_image(path)
    except ImageError as error:
        raise UserError(str(error)) from error


def _video(path: Path, count: int) -> Clip:
    """The frames of a video; a bar shows how far its decoding has come, where somebody may look."""
    from vlprune.media.image import ImageError
    from vlprune.media.video import read_clip

    with _progress() as progress:
        task = progress.add_task(f"decoding {path.name}", total=None)
        try:
            return read_clip(path, count, tick=lambda done, of: progress.update(task, completed=done, total=of))
        except ImageError as error:
            raise UserError(str(error)) from error


def _progress() -> Progress:
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())


def _save(path: Path, image: Any, records: Any, **options: Any) -> None:
    """A picture of a list of records, or a contact sheet of those of several methods."""
    from vlprune.show import save_contact_sheet, save_picture

    try:
        (save_contact_sheet if isinstance(records, dict) else save_picture)(path, image, records, **options)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written ({error.strerror or error}).") from error


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120)


# --- comparing ------------------------------------------------------------------------------------------------------


@app.command()
def compare(
    path: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image (PNG, JPEG, WebP, GIF, ...).")],
    question: Question,
    model: ModelName = "pocket",
    keep: Keep = str(KEEP),
    names: Annotated[
        str | None, typer.Option("--methods", metavar="A,B,...", help="Which methods; all of them if not said.")
    ] = None,
    clip: ClipName = None,
    show: Annotated[Path, typer.Option(help="Where the picture of what each method keeps goes.")] = Path(
        "vlprune-compare.png"
    ),
    repeats: Annotated[int, typer.Option(min=1, help="How often each method is timed; the medians count.")] = 3,
    force: Force = False,
    max_new_tokens: Longest = 64,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """See all methods side by side on one image and question.

    Prints what each answers, how many tokens it keeps and what it takes, and writes a picture of what each keeps. A
    method that cannot run on the model is listed with the reason.
    """
    from vlprune.methods import list_methods

    if not question.strip():
        raise UserError("the question is empty.")
    wanted = list_methods() if names is None else [name.strip() for name in names.split(",") if name.strip()]
    if not wanted:
        raise UserError("--methods is empty: name some, with commas between, or leave it out for all.")
    target = _picture_path(show, path, model, clip, force=force)
    image = _image(path)
    chosen = [_method(name, keep) for name in dict.fromkeys(wanted)]
    loaded = load(model, clip, device)
    inputs = asking.prepare(loaded, image, question)

    from vlprune.evaluation import compare as comparing

    with _progress() as progress:
        task = progress.add_task("", total=1 + len(chosen))

        def tick(name: str) -> None:
            progress.update(task, description=name, advance=1)

        options = {"repeats": repeats, "max_new_tokens": max_new_tokens}
        ways = comparing.compare(loaded, chosen, inputs, question, tick=tick, **options)
    plain, *others = ways
    ran = {way.name: way for way in others if way.records}
    records = {name: way.record for name, way in ran.items()}
    views = asking.views(loaded, inputs, image, next(iter(records.values())))
    _save(target, views, records, title=question, titles={way.name: way.title for way in ways} | {"": plain.title})
    assert plain.run is not None
    vision = plain.run.latency.vision
    if as_json:
        said = keep if "+" in keep else _keep(keep)
        found = {"question": question, "model": model, "keep": said, "vision_seconds": vision}
        methods = {way.name: way.facts() for way in others}
        print(json.dumps({**found, "all": plain.facts(), "methods": methods}, indent=2))
        return
    from vlprune.cli.tables import compare_table

    _console().print(compare_table(ways, vision))
    print(f"wrote {target}")


# --- the demo -------------------------------------------------------------------------------------------------------


@app.command()
def demo(
    scene: Annotated[int, typer.Option(min=0, help="Which scene of the test split to draw.")] = 0,
    method: MethodName = "script",
    keep: Keep = "64",
    settings: Settings = None,
    out: Annotated[Path, typer.Option(help="Where the picture goes.")] = Path("vlprune-demo.png"),
    force: Force = False,
    repeats: Annotated[int, typer.Option(min=1, help="How often each question is timed.")] = 3,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """See it at work on the model that comes with vlprune.

    Draws a scene, asks about it with all tokens and with few, prints answers and costs, and writes a picture of what
    was kept, and why.
    """
    target = _picture_path(out, force=force)
    chosen = _method(method, keep, settings)
    loaded = load("pocket", None, device)

    from vlprune.evaluation.demo import run_demo

    shown = run_demo(loaded, chosen, scene, repeats)
    _save(target, **shown.picture())
    if as_json:
        found = {"scene": shown.scene.name, "method": chosen.name, "keep": keep if "+" in method else chosen.keep}
        print(json.dumps({**found, "questions": [asked.facts() for asked in shown.asked]}, indent=2))
        return
    from vlprune.cli.tables import answer_table, cost_table, figures

    console = _console()
    questions = [(asked.question.text, asked.question.answer) for asked in shown.asked]
    runs = [asked.runs for asked in shown.asked]
    visual, kept = (run.visual_tokens for run in runs[0])
    ways = (f"all {visual}", f"{kept} of {visual}")
    console.print(answer_table(questions, [asked.answers for asked in shown.asked], ways))
    console.print(cost_table([(title, figures([pair[i] for pair in runs])) for i, title in enumerate(ways)]))
    print(f"wrote {target}")


# --- lists ----------------------------------------------------------------------------------------------------------


@app.command()
def methods() -> None:
    """List the methods: what they need, what a budget comes to, their settings and presets."""
    from vlprune.cli.tables import needs_table, settings_table
    from vlprune.methods import get_method, list_methods

    console, known = _console(), [get_method(name, keep=KEEP) for name in list_methods()]
    console.print(needs_table(known, n=576, layers=32))
    console.print(settings_table(known))


app.command()(bench)


@app.command()
def models() -> None:
    """List the model families that can be pruned."""
    from rich.table import Table

    from vlprune.models import list_families

    known = [name for family in list_families() for name in family.classes]
    table = Table(show_lines=True)
    table.add_column("family and classes", overflow="fold", width=max(len(name) for name in known))
    for title, width in (("what is pruned", None), ("positions", 10), ("relevance", 15), ("tested with", None)):
        table.add_column(title, overflow="fold", width=width)
    for family in list_families():
        classes = "\n".join(family.classes) or "any other with image placeholders"
        positions = "\n".join(family.positions)
        table.add_row(f"[bold]{family.name}[/]\n{classes}", family.prunes, positions, family.relevance, family.tested)
    _console().print(table)
    print(
        "The first of the positions is the default. --model takes 'pocket' (comes with vlprune), a folder, or a hub id,"
    )
    print("such as llava-hf/llava-1.5-7b-hf.")


import vlprune.cli.evaluate  # noqa: E402, F401  # eval, study and report, which use what is above

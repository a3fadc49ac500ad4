"""The program `vlprune`. Only typer loads at the start: everything heavy loads inside the command that needs it."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

if TYPE_CHECKING:
    from PIL import Image
    from rich.console import Console

    from vlprune.measure import Run
    from vlprune.methods import Method
    from vlprune.record import Record

PICTURES = (".png", ".pdf", ".svg", ".jpg")
PICTURED = ("color", "digit", "where")  # the kinds of question that the demo's picture shows
FALLBACK_PROMPT = "USER: <image>\n{question} ASSISTANT:"  # LLaVA-1.5's, for checkpoints without a chat template

app = typer.Typer(
    name="vlprune",
    help="Drop the visual tokens that a question does not need, before the LLM pays for them.",
    add_completion=False,
    rich_markup_mode=None,  # rich takes longer to load than all the rest of --help
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


class UserError(Exception):
    """Something the user can put right; the message is one plain sentence, and the program ends with code 2."""


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


# --- the model ------------------------------------------------------------------------------------------------------


@dataclass
class Loaded:
    """A model with what belongs to it; `clip` is its dual encoder, if it has one."""

    name: str
    model: Any
    processor: Any
    clip: Any


@contextmanager
def _loading(option: str, what: str) -> Iterator[None]:
    """Turn what transformers raises about missing, unreachable or broken files into one sentence."""
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, HFValidationError, SafetensorError) as error:
        causes = [error.__cause__, error.__context__, error]
        if any(isinstance(cause, GatedRepoError) for cause in causes):
            raise UserError(
                f"{option} {what}: access to it must be asked for on the hub, and a token given."
            ) from error
        if any(isinstance(cause, LocalEntryNotFoundError) for cause in causes) or "couldn't connect" in str(error):
            raise UserError(f"{option} {what}: there is no such folder, and the hub cannot be reached.") from error
        if any(isinstance(cause, RepositoryNotFoundError) for cause in causes):
            raise UserError(f"{option} {what}: the hub has no such model.") from error
        raise UserError(f"{option} {what}: it cannot be loaded ({str(error).splitlines()[0].rstrip('.')}).") from error


def _device(name: str) -> Any:
    import torch

    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"--device {name}: no such device; use cpu or cuda.") from None
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"--device {name}: this machine has {torch.cuda.device_count()} CUDA devices.")
    return device


def _quiet(bars: bool) -> None:
    """No notices of retries and the like, and bars only where a download may take long."""
    import huggingface_hub.utils.logging as hub
    import transformers.utils.logging as quiet

    quiet.set_verbosity_error()
    hub.set_verbosity_error()
    if not bars:
        quiet.disable_progress_bar()


def _load(name: str, clip: str | None, device: str) -> Loaded:
    """The pocket model, a folder, or a model of the hub; its class is checked before its weights are read."""
    where = _device(device)
    place = Path(name).expanduser()
    _quiet(bars=name != "pocket" and not place.is_dir())
    if name == "pocket":
        from vlprune import pocket

        model, processor, encoder = pocket.load()
        return Loaded(name, model.to(where), processor, clip or encoder.to(where))
    from transformers import AutoModelForImageTextToText, AutoProcessor, PreTrainedConfig

    if place.is_dir():
        if not (place / "config.json").is_file():
            raise UserError(f"--model {name}: the folder has no config.json.")
        name = str(place)
    elif place.exists() or not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith("."):
        near = " (did you mean 'pocket'?)" if _nearest(name, ["pocket"]).startswith("did") else ""
        raise UserError(f"--model {name}: there is no such folder, and it is not 'pocket' or a hub id{near}.")
    with _loading("--model", name):
        config, _ = PreTrainedConfig.get_config_dict(name)
    _check_class(name, config)
    with _loading("--model", name):
        processor = AutoProcessor.from_pretrained(name)
        model = AutoModelForImageTextToText.from_pretrained(name, dtype="auto").eval().to(where)
    return Loaded(name, model, processor, clip)


def _check_class(name: str, config: dict[str, Any]) -> None:
    from difflib import get_close_matches

    from vlprune.models import list_families

    known = [kind for family in list_families() for kind in family.classes]
    kind = (config.get("architectures") or [f"model of type {config.get('model_type')!r}"])[0]
    if kind not in known:
        near = get_close_matches(kind, known, n=1, cutoff=0.0)[0]
        raise UserError(f"--model {name} is a {kind}, which is not supported; the nearest supported class is {near}.")


# --- asking ---------------------------------------------------------------------------------------------------------


def _inputs(loaded: Loaded, image: Image.Image, question: str) -> dict[str, Any]:
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
    if getattr(loaded.processor, "chat_template", None):
        prompt = loaded.processor.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    else:
        print(f"vlprune: {loaded.name} has no chat template; LLaVA-1.5's is used.", file=sys.stderr)
        prompt = FALLBACK_PROMPT.format(question=question)
    inputs = loaded.processor(images=image, text=prompt, return_tensors="pt").to(loaded.model.device)
    inputs["pixel_values"] = inputs["pixel_values"].to(loaded.model.dtype)
    return dict(inputs)


def _attach(loaded: Loaded, method: Method, question: str) -> Any:
    """The pruner; it keeps no features, so that the time of the vision tower is seen."""
    from vlprune.errors import UnsupportedModel
    from vlprune.pruner import attach

    with _loading("--clip", str(loaded.clip)):
        try:
            return attach(
                loaded.model,
                method,
                processor=loaded.processor,
                query=question,
                dual_encoder=loaded.clip,
                cache_bytes=0,
            )
        except UnsupportedModel as error:
            raise UserError(f"--model {loaded.name}: {error}") from error
        except ValueError as error:  # settings that do not go with this model, such as relevance=clip without --clip
            raise UserError(f"--method {method.name}: {error}") from error


def _check_keep(method: Method, visual: int) -> None:
    try:
        method.count(visual)
    except ValueError as error:
        raise UserError(f"--{error}".replace("--keep=", "--keep ")) from error


def _decoded(loaded: Loaded, run: Run) -> str:
    return str(loaded.processor.batch_decode(run.new, skip_special_tokens=True)[0]).strip()


def _cost(run: Run) -> dict[str, Any]:
    from dataclasses import asdict

    from vlprune.measure import CONVENTIONS

    flops = run.flops
    counted: dict[str, Any] | None = None
    if flops is not None:
        counted = {"prefill": flops.prefill, "decode": flops.decode, "total": flops.total}
        counted["convention"] = CONVENTIONS[flops.convention]
    return {
        "visual_tokens": run.visual_tokens,
        "prompt_tokens": run.prompt_tokens,
        "new_tokens": int(run.new.shape[1]),
        "llm_flops": counted,
        "kv_bytes": run.kv_bytes,
        "seconds": {**asdict(run.latency), "total": run.latency.total},
    }


def _chosen(record: Record) -> dict[str, Any]:
    return {
        "before": record.before,
        "after": record.after,
        "grid": list(record.grid),
        "kept": record.kept.tolist(),
        "order": record.order.tolist() if record.order is not None else None,
        "relevance": record.source,
    }


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
    loaded = _load(model, clip, device)
    inputs = _inputs(loaded, opened, question)
    visual = int((inputs["input_ids"] == loaded.model.config.image_token_id).sum())
    _check_keep(chosen, visual)

    from vlprune.measure import measure_generate

    with _attach(loaded, chosen, question) as pruner:
        run = measure_generate(loaded.model, inputs, pruner=pruner, max_new_tokens=max_new_tokens)
    answer = _decoded(loaded, run)
    if target is not None:
        from vlprune.show import as_seen

        seen = as_seen(inputs["pixel_values"][0], loaded.processor)
        _save(target, seen, [pruner.last], titles=[f"{question} → {answer}"])
    if as_json:
        found = {"question": question, "answer": answer, "model": model, "method": chosen.name, "keep": budget}
        print(json.dumps({**found, "tokens": _chosen(pruner.last), "cost": _cost(run)}, indent=2))
        return
    from vlprune.show.tables import cost_table, figures

    console = _console()
    console.print(answer, markup=False, highlight=False)
    whole = _whole(loaded, run, visual)
    ways = (f"all {visual}, by formula", f"{run.visual_tokens} of {visual}")
    console.print(cost_table([(ways[0], whole), (ways[1], figures([run]))]))
    if target is not None:
        print(f"wrote {target}")


def _whole(loaded: Loaded, run: Run, visual: int) -> dict[str, str]:
    """What the same answer would have cost with all visual tokens, as far as formulas say."""
    from vlprune.measure import LLMShape, kv_bytes, llm_flops
    from vlprune.show.tables import amount

    if not LLMShape.knows(loaded.model):
        return {}
    prompt, new = run.prompt_tokens - run.visual_tokens + visual, int(run.new.shape[1])
    return {
        "LLM FLOPs": amount(llm_flops(loaded.model, prompt, new).total),
        "KV bytes": amount(kv_bytes(loaded.model, prompt + new - 1), "B"),
    }


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
    loaded = _load("pocket", None, device)

    from vlprune import pocket
    from vlprune.pocket.render import images
    from vlprune.show import Mark, as_seen

    (drawn,) = pocket.scenes("test", 1, start=scene)
    (image,) = images([drawn])
    asked = pocket.questions(drawn)
    prompts = [_inputs(loaded, image, question.text) for question in asked]
    visual = int((prompts[0]["input_ids"] == loaded.model.config.image_token_id).sum())
    _check_keep(chosen, visual)
    pairs, records = _both_ways(loaded, chosen, [question.text for question in asked], prompts, repeats)
    answers = [(_decoded(loaded, plain), _decoded(loaded, pruned)) for plain, pruned in pairs]

    rows = [i for i, question in enumerate(asked) if question.kind in PICTURED] or list(range(len(asked)))
    around = [
        [Mark(thing.x, thing.y, 1.3 * thing.radius) for j in asked[i].about for thing in [drawn.things[j]]]
        for i in rows
    ]
    titles = [f"{asked[i].text} → {answers[i][1]}" for i in rows]
    seen = as_seen(prompts[0]["pixel_values"][0], loaded.processor)
    _save(target, seen, [records[i] for i in rows], titles=titles, marks=around)

    if as_json:
        found = [
            {
                "question": question.text,
                "truth": question.answer,
                "all": {"answer": answer[0], "right": answer[0] == question.answer, **_cost(plain)},
                "kept": {"answer": answer[1], "right": answer[1] == question.answer, **_cost(pruned)},
                "tokens": _chosen(record),
            }
            for question, answer, (plain, pruned), record in zip(asked, answers, pairs, records)
        ]
        print(json.dumps({"scene": drawn.name, "method": chosen.name, "keep": budget, "questions": found}, indent=2))
        return
    from vlprune.show.tables import answer_table, cost_table, figures

    console = _console()
    ways = (f"all {visual}", f"{pairs[0][1].visual_tokens} of {visual}")
    console.print(answer_table([(q.text, q.answer) for q in asked], answers, ways))
    console.print(cost_table([(title, figures([pair[i] for pair in pairs])) for i, title in enumerate(ways)]))
    print(f"wrote {target}")


def _both_ways(
    loaded: Loaded, method: Method, questions: Sequence[str], prompts: Sequence[dict[str, Any]], repeats: int
) -> tuple[list[tuple[Run, Run]], list[Record]]:
    """Each question with all tokens and with the method's, and what was kept."""
    from vlprune.measure import measure_generate

    pairs: list[tuple[Run, Run]] = []
    records: list[Record] = []
    for i, (question, prompt) in enumerate(zip(questions, prompts)):
        options: dict[str, Any] = {"repeats": repeats, "warmup": int(i == 0), "max_new_tokens": 8}
        plain = measure_generate(loaded.model, prompt, **options)
        with _attach(loaded, method, question) as pruner:
            pruned = measure_generate(loaded.model, prompt, pruner=pruner, **options)
        pairs.append((plain, pruned))
        records.append(pruner.last)
    return pairs, records


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
    for title in ("family", "classes", "what is pruned", "relevance", "tested with"):
        table.add_column(title, no_wrap=title in ("family", "classes"))
    for family in list_families():
        table.add_row(family.name, "\n".join(family.classes), family.prunes, family.relevance, family.tested)
    _console().print(table)
    print("--model takes 'pocket' (comes with vlprune), a folder, or a hub id, such as llava-hf/llava-1.5-7b-hf.")

"""Options that commands share, and what their texts mean: budgets, methods and settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from operator import add
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union

import typer

from vlprune.budget import Budget
from vlprune.errors import UserError

if TYPE_CHECKING:
    from vlprune.methods import Method

DEFAULT_KEEP = 64

Question = Annotated[str, typer.Argument(metavar="QUESTION", help="What to ask about it.")]
ModelName = Annotated[
    str, typer.Option("--model", help="pocket, a folder, or the id of a model on the hub: see `vlprune models`.")
]
MethodName = Annotated[
    str, typer.Option("--method", help="How tokens are chosen: see `vlprune methods`; two may be joined by +.")
]
KEEP_HELP = (
    "Tokens to keep per image or video: a number (64), a ratio (0.1), 64~0.05 (64 on average, as long as a token adds "
    "0.05 of what the first added), or 192+64 with two methods."
)
Keep = Annotated[str, typer.Option("--keep", help=KEEP_HELP)]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="A setting of the method, such as tau=0.2; may be repeated."),
]
ClipName = Annotated[
    str | None,
    typer.Option("--clip", help="A CLIP or SigLIP (folder or hub id) that the model was built on, for relevance."),
]
MaxNewTokens = Annotated[int, typer.Option("--max-new-tokens", min=1, help="The longest answer.")]
Device = Annotated[str, typer.Option("--device", help="cpu, cuda, cuda:1 ...; a GPU where there is one.")]
Force = Annotated[
    bool, typer.Option("--force", help="Replace an output file that is there already, also one of another program.")
]
Wide = Annotated[bool, typer.Option("--wide", help="Print all columns, also those that do not fit side by side.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


def suggest_name(word: str, known: Sequence[str]) -> str:
    """The end of a sentence about an unknown name: the nearest known one, or all of them.

    >>> suggest_name("skript", ["script", "random"]), suggest_name("zzz", ["script", "random"])
    ("did you mean 'script'?", 'choose from script, random.')
    """
    from difflib import get_close_matches

    near = get_close_matches(word, known, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(known)}."


def split_list(text: str) -> list[str]:
    """The parts of a text between its commas, without empty ones.

    >>> split_list("script, random,")
    ['script', 'random']
    """
    return [part.strip() for part in text.split(",") if part.strip()]


def check_question(question: str) -> None:
    """Refuse an empty question."""
    if not question.strip():
        raise UserError("the question is empty.")


def parse_keep(text: str) -> int | float | Budget:
    """A number of tokens ("64"), a ratio ("0.1"), or an adaptive budget with its mean and share ("64~0.05").

    >>> parse_keep("64"), parse_keep("0.1")
    (64, 0.1)
    """
    mean, tilde, share = text.partition("~")
    if tilde:
        try:
            tokens, least = int(mean), float(share)
        except ValueError:
            raise UserError(
                f"--keep {text}: write a number of tokens before ~ and a share behind it: 64~0.05."
            ) from None
        try:
            return Budget(adaptive=least, mean=tokens)
        except ValueError as error:
            raise UserError(f"--keep {text}: {str(error).partition(': ')[2]}") from None
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


def parse_method(
    name: str,
    keep: str | Budget | None,
    pairs: Sequence[str] | None = None,
    preset: str | None = None,
    *,
    listed: bool = False,
) -> Method:
    """The method that --method, --keep, --set and --preset describe; "script+fastv" is one before and one in the LLM.

    Each of the two takes the settings that it has. What `keep` does not say, a preset may; else it is 64. `listed`
    methods are of --methods, with their settings behind them: "script:tau=0.2"; errors name what was typed.
    """
    names, option = name.split("+"), "--methods" if listed else "--method"
    if len(names) > 1 and preset is not None:
        raise UserError(f"--preset {preset} goes with one method, but --method {name} names {len(names)}.")
    keeps = keep.split("+") if isinstance(keep, str) and len(names) > 1 else [keep]
    if len(keeps) != len(names):
        raise UserError(f"{option} {name}: say what each of them is to keep, such as --keep 192+64.")
    budgets = [parse_keep(part) if isinstance(part, str) else part for part in keeps]
    settings = parse_settings(names, pairs, listed=listed)
    methods = [
        _make_method(one, budget, own, preset, f"--methods {name}:" if listed else "--set ")
        for one, budget, own in zip(names, budgets, settings)
    ]
    try:
        return reduce(add, methods)
    except TypeError:
        raise UserError(
            f"{option} {name}: with + the first method must choose before the LLM, and the second one inside it."
        ) from None


def _make_method(
    name: str, keep: int | float | Budget | None, settings: dict[str, Any], preset: str | None, typed: str
) -> Method:
    """One method with its budget, preset and settings; `typed` is what stood before a setting."""
    from vlprune.methods import get_method

    presets = type(get_method(name)).presets
    if preset is not None and preset not in presets:
        hint = suggest_name(preset, list(presets)) if presets else "it has none."
        raise UserError(f"--preset {preset}: {name} has no such preset; {hint}")
    given = {} if keep is None else {"keep": keep}
    if keep is None and "keep" not in presets.get(preset or "", {}):
        given = {"keep": DEFAULT_KEEP}
    try:
        return get_method(name, preset=preset, **given, **settings)
    except ValueError as error:
        blamed = str(error).partition("=")[0]
        option = typed if preset is None or blamed in settings else f"--preset {preset}: "
        raise UserError(f"{option}{error}") from error


def parse_settings(names: Sequence[str], pairs: Sequence[str] | None, *, listed: bool = False) -> list[dict[str, Any]]:
    """`["tau=0.2", "layer=3"]` as a dictionary for each of the methods, each value of its field's type."""
    from dataclasses import fields
    from typing import get_type_hints

    from vlprune.methods import get_method, list_methods

    for name in names:
        if name not in list_methods():
            option = "--methods" if listed else "--method"
            raise UserError(f"{option} {name}: no such method; {suggest_name(name, list_methods())}")
    kinds = [type(get_method(name)) for name in names]
    known = {field.name for kind in kinds for field in fields(kind)} - {"keep"}
    settings: list[dict[str, Any]] = [{} for _ in names]
    for pair in pairs or ():
        setting, sign, text = pair.partition("=")
        typed = f"--methods {'+'.join(names)}:{pair}" if listed else f"--set {pair}"
        if not sign or not setting:
            raise UserError(f"{typed}: write it as NAME=VALUE.")
        if setting == "keep":
            raise UserError(f"{typed}: use --keep.")
        if setting not in known:
            hint = suggest_name(setting, sorted(known)) if known else "it has none."
            raise UserError(f"{typed}: {' and '.join(names)} has no such setting; {hint}")
        for kind, own in zip(kinds, settings):
            if setting in {field.name for field in fields(kind)}:
                own[setting] = parse_value(typed, text, get_type_hints(kind)[setting])
    return settings


def parse_value(typed: str, text: str, hint: Any) -> Any:
    """A setting's text as a value of its field's type; `typed` is the whole option, for the sentence if it is none.

    >>> parse_value("--set layers=2,6", "2,6", tuple[int, ...] | None)
    (2, 6)
    """
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
            return tuple(parse_value(typed, part, get_args(kind)[0]) for part in word.strip("()").split(",") if part)
        if kind is str:
            return text
    says = {bool: "true or false", int: "a whole number", float: "a number", type(None): "none"}
    raise UserError(f"{typed}: it must be {' or '.join(says.get(kind, str(kind)) for kind in kinds)}.")

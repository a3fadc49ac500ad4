"""Options that commands share, and what their texts mean: budgets, methods and settings."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import suppress
from functools import reduce
from operator import add
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Union

import typer

from vlprune.budget import Budget
from vlprune.errors import UserError

if TYPE_CHECKING:
    from vlprune.methods import Method

DEFAULT_KEEP = 64
#: The field of a `Budget` for what --keep names behind a slash.
BUDGET_FIELDS = {"tile": "per_tile", "frame": "per_frame", "layer": "layer_average"}

Question = Annotated[str, typer.Argument(metavar="QUESTION", help="What to ask about it.")]
ModelName = Annotated[
    str,
    typer.Option(
        "--model",
        help="pocket (comes with vlprune), a folder, the id of a model on the hub (see `vlprune models`), or photo.",
    ),
]
METHOD_HELP = (
    "a name (script), a preset (visionzip@64), settings (script:fusion=filter,rho=0.5), or one before and one inside "
    "the LLM (script:keep=192+fastv:keep=64)"
)
MethodName = Annotated[str, typer.Option("--method", help=f"How tokens are chosen: {METHOD_HELP}.")]
METHODS_HELP = f"Methods with commas between, or all. Each is {METHOD_HELP}."
KEEP_HELP = (
    "Tokens to keep per image or video, for methods that do not say it themselves: a number (64), a ratio (0.1), per "
    "tile or frame (32/tile, 16/frame; 32/tile/compete lets tiles compete for the sum), on average over the LLM's "
    "layers (64/layer), 64~0.05 (script_plus: 64 on average, as long as a token adds 0.05 of what the first added), or "
    "192+64 with two methods."
)
Keep = Annotated[str | None, typer.Option("--keep", help=f"{KEEP_HELP} If not said: 64.")]
KEEPS_HELP = f"Budgets with commas between. Each is: {KEEP_HELP}"
EncoderName = Annotated[
    str | None,
    typer.Option(
        "--dual-encoder",
        help="A CLIP or SigLIP (folder or hub id) that the model was built on, for relevance; auto: the one that is "
        "known to be. A model's folder may bring its own in its folder clip.",
    ),
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


def split_methods(text: str) -> list[str]:
    """The methods of a list; a setting or a number behind a comma belongs to the method before it.

    >>> split_methods("script:fusion=filter,rho=0.5, pyramiddrop:layers=2,6, random")
    ['script:fusion=filter,rho=0.5', 'pyramiddrop:layers=2,6', 'random']
    """
    found: list[str] = []
    for piece in split_list(text):
        if found and re.match(r"\w+\s*=|[-+.(\d]", piece):
            found[-1] += f",{piece}"
        else:
            found.append(piece)
    return found


def parse_keep(text: str, typed: str | None = None) -> int | float | Budget:
    """A number of tokens ("64"), a ratio ("0.1"), or a `Budget` ("32/tile", "16/frame", "64/layer", "64~0.05").

    `typed` is the whole option, for the sentence if the text is none of these.

    >>> parse_keep("64"), parse_keep("0.1"), str(parse_keep("32/tile")), str(parse_keep("64/layer"))
    (64, 0.1, '32 per tile', '64 tokens per layer on average')
    """
    text = text.strip()
    typed = f"--keep {text}" if typed is None else typed
    if "~" in text:
        return _parse_adaptive(text, typed)
    if "/" in text:
        return _parse_share(text, typed)
    if re.fullmatch(r"[+-]?\d{1,12}", text):
        number = int(text)
        if number <= 0:
            raise UserError(f"{typed}: at least one token must be kept.")
        return number
    try:
        ratio = float(text)
    except ValueError:
        raise UserError(
            f"{typed}: pass a number of tokens (64), a ratio (0.1), or tokens per part (32/tile, 16/frame, 64/layer)."
        ) from None
    if not 0 < ratio <= 1:
        raise UserError(f"{typed}: a ratio must lie above 0 and not above 1.")
    return ratio


def _parse_adaptive(text: str, typed: str) -> Budget:
    """A budget with a mean and a share, such as "64~0.05"."""
    mean, _, share = text.partition("~")
    try:
        tokens, least = int(mean), float(share)
    except ValueError:
        raise UserError(f"{typed}: write a number of tokens before ~ and a share behind it: 64~0.05.") from None
    try:
        return Budget(adaptive=least, mean=tokens)
    except ValueError as error:
        raise UserError(f"{typed}: {str(error).partition(': ')[2]}") from None


def _parse_share(text: str, typed: str) -> Budget:
    """A budget for each tile, frame or layer, such as "32/tile" or "32/tile/compete"."""
    number, part, *more = text.split("/")
    if part not in ("tile", "frame", "layer") or more not in ([], ["compete"]) or (part == "layer" and more):
        raise UserError(f"{typed}: write it as 32/tile, 16/frame, 64/layer, or 32/tile/compete.")
    try:
        tokens = int(number)
    except ValueError:
        raise UserError(f"{typed}: write a number of tokens before /{part}.") from None
    try:
        return Budget(**{BUDGET_FIELDS[part]: tokens}, compete=bool(more))
    except ValueError as error:
        raise UserError(f"{typed}: {str(error).partition(': ')[2]}") from None


def format_keep(method: Method) -> int | float | str:
    """A method's budget as a number, or as --keep takes it.

    >>> from vlprune import FastV, Random
    >>> format_keep(Random(64)), format_keep(Random(Budget(per_tile=32))), format_keep(Random(8) + FastV(4))
    (64, '32/tile', '8+4')
    """
    from vlprune.methods.in_llm import TwoStage

    if isinstance(method, TwoStage):
        return f"{format_keep(method.first)}+{format_keep(method.then)}"
    keep = method.keep
    if not isinstance(keep, Budget):
        return keep
    for part, field in BUDGET_FIELDS.items():
        if getattr(keep, field) is not None:
            return f"{getattr(keep, field)}/{part}" + "/compete" * keep.compete
    if keep.mean is not None:
        return f"{keep.mean}~{keep.adaptive:g}"
    return keep.tokens if keep.tokens is not None else keep.ratio or 1.0


def parse_methods(text: str, keeps: Sequence[str] | None) -> dict[str, dict[str, Method]]:
    """What --methods lists, by name and then by budget; `keeps` are the budgets of --keep, None if it was not said.

    A method that says itself what to keep ("visionzip@64", "script:keep=16") has that budget alone.
    """
    from vlprune.methods import list_methods

    wanted = [name for spec in split_methods(text) for name in (list_methods() if spec == "all" else [spec])]
    if not wanted:
        raise UserError("--methods is empty: name some, with commas between, or say all.")
    methods: dict[str, dict[str, Method]] = {}
    for spec in wanted:
        stages = _parse_stages(spec, "--methods")
        if all(stage.says_keep for stage in stages) or keeps is None:
            one = _join_stages(stages, spec, None, "--methods")
            methods[spec] = {str(format_keep(one)): one}
        else:
            methods[spec] = {keep: _join_stages(stages, spec, keep, "--methods") for keep in keeps}
    return methods


def parse_method(spec: str, keep: str | None) -> Method:
    """The method that --method and --keep describe; `keep` is None if it was not said."""
    if len(split_methods(spec)) != 1:
        raise UserError(f"--method {spec}: name one method; `vlprune compare` takes several.")
    return _join_stages(_parse_stages(spec, "--method"), spec, keep, "--method")


class _Stage(NamedTuple):
    """A method as it was typed: its name, preset and settings; `typed` stands before a setting in a sentence."""

    name: str
    preset: str | None
    settings: dict[str, Any]
    typed: str

    @property
    def says_keep(self) -> bool:
        """Whether preset or settings say what to keep."""
        from vlprune.methods.registry import METHODS

        return "keep" in self.settings or "keep" in METHODS[self.name].presets.get(self.preset or "", {})

    def make(self, keep: int | float | Budget | None) -> Method:
        """The method, with this budget unless it is None."""
        from vlprune.methods import get_method

        given = {} if keep is None else {"keep": keep}
        try:
            return get_method(self.name, preset=self.preset, **given, **self.settings)
        except ValueError as error:
            blamed = str(error).partition("=")[0]
            raise UserError(f"{self.typed}{':' if blamed in self.settings else ': '}{error}") from error


def _join_stages(stages: Sequence[_Stage], spec: str, keep: str | None, option: str) -> Method:
    """The method of one stage, or of one before the LLM and one inside it, with what --keep says or else 64."""
    said = [stage for stage in stages if stage.says_keep]
    if keep is not None and said:
        raise UserError(f"--keep {keep} and {option} {spec} contradict each other: {said[0].name} says what to keep.")
    keeps: list[str | None] = [None] * len(stages)
    if len(said) < len(stages):
        given = str(DEFAULT_KEEP) if keep is None else keep
        keeps = [given] if len(stages) == 1 else [*given.split("+")]
    if len(keeps) != len(stages) or (said and len(said) < len(stages)):
        raise UserError(f"{option} {spec}: say what each of them is to keep, such as --keep 192+64.")
    methods = [stage.make(None if one is None else parse_keep(one)) for stage, one in zip(stages, keeps)]
    try:
        return reduce(add, methods)
    except TypeError:
        raise UserError(
            f"{option} {spec}: with + the first method must choose before the LLM, and the second one inside it."
        ) from None


def _parse_stages(spec: str, option: str) -> list[_Stage]:
    """The methods between plus signs: "script:tau=0.2+fastv@64" are two."""
    return [_parse_stage(text.strip(), option) for text in re.split(r"\+(?=\s*[A-Za-z])", spec)]


def _parse_stage(text: str, option: str) -> _Stage:
    """One method: a name, then @ and a preset, then a colon and settings, the latter with commas or colons between."""
    from vlprune.methods import get_method, list_methods
    from vlprune.methods.registry import explain_missing

    named, colon, rest = text.partition(":")
    if not colon and "," in named:
        raise UserError(f"{option} {text}: settings go behind a colon: {named.partition(',')[0]}:NAME=VALUE.")
    name, at, preset = (part.strip() for part in named.partition("@"))
    if name not in list_methods():
        raise UserError(f"{option} {name}: {explain_missing(name)}")
    kind = type(get_method(name))
    if at and preset not in kind.presets:
        hint = suggest_name(preset, list(kind.presets)) if kind.presets else "it has none."
        raise UserError(f"{option} {name}@{preset}: {name} has no such preset; {hint}")
    typed = f"{option} {name}@{preset}" if at else f"{option} {name}"
    pairs = [pair for part in rest.split(":") for pair in split_settings(part)] if colon else []
    return _Stage(name, preset if at else None, _parse_settings(kind, pairs, typed), typed)


def split_settings(text: str) -> list[str]:
    """The settings between commas; a comma that no NAME= follows is part of a value.

    >>> split_settings("layers=2,6,recycle=0")
    ['layers=2,6', 'recycle=0']
    """
    return [pair.strip() for pair in re.split(r",(?=\s*\w+\s*=)", text)]


def _parse_settings(kind: type[Method], pairs: Sequence[str], typed: str) -> dict[str, Any]:
    """`["tau=0.2", "gamma=3"]` as a dictionary, each value of its field's type."""
    from dataclasses import fields
    from typing import get_type_hints

    known = [field.name for field in fields(kind)]
    settings: dict[str, Any] = {}
    for pair in pairs:
        setting, sign, text = (part.strip() for part in pair.partition("="))
        if not sign or not setting:
            raise UserError(f"{typed}:{pair}: write it as NAME=VALUE.")
        if setting not in known:
            raise UserError(f"{typed}:{pair}: {kind.name} has no such setting; {suggest_name(setting, known)}")
        if setting == "keep":
            settings[setting] = parse_keep(text, f"{typed}:{pair}")
        else:
            settings[setting] = parse_value(f"{typed}:{pair}", text, get_type_hints(kind)[setting])
    return settings


def parse_value(typed: str, text: str, hint: Any) -> Any:
    """A setting's text as a value of its field's type; `typed` is the whole option, for the sentence if it is none.

    >>> parse_value("--method pyramiddrop:layers=2,6", "2,6", tuple[int, ...] | None)
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

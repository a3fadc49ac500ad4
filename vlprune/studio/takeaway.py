"""What reproduces the screen elsewhere: Python code, a command line, pictures, and the record as JSON."""

from __future__ import annotations

import json
import shlex
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from typing import Any

from vlprune.evaluation.one_question import tokens_as_json
from vlprune.media.video import VIDEO_ENDINGS
from vlprune.methods import Method
from vlprune.methods.in_llm import TwoStage
from vlprune.record import Record
from vlprune.show import save_picture

ASK_MANY = """\
from vlprune import {names}

{load}
with attach(model, {method}, processor=processor{encoder}) as pruner:
    print(pruner.ask_many({image!r}, [{question!r}], max_new_tokens={length}, do_sample=False)[0])
    print(pruner.last.kept.tolist())
"""
LONG = """\
from vlprune import {names}
from vlprune.evaluation.load_model import load_model
from vlprune.evaluation.one_question import prepare_inputs
from vlprune.media.image import open_image
from vlprune.media.video import read_clip

question = {question!r}
loaded = load_model({model!r}, {encoder!r}, "auto", video={video})
inputs = prepare_inputs(loaded, {read}, question)
options = {{"processor": loaded.processor, "query": question, "dual_encoder": loaded.clip}}
with attach(loaded.model, {method}, **options) as pruner:
    output = loaded.model.generate(**inputs, max_new_tokens={length}, do_sample=False)
new = output[:, inputs["input_ids"].shape[1] :]
print(loaded.processor.batch_decode(new, skip_special_tokens=True)[0].strip())
print([record.kept.tolist() for record in pruner.records])
"""
LOAD_POCKET = "model, processor, clip = pocket.load()"
MOVE_POCKET = '\nmodel, clip = model.to("{device}"), clip.to("{device}")'
LOAD_HUB = """\
from transformers import AutoModelForImageTextToText, AutoProcessor

model = AutoModelForImageTextToText.from_pretrained({model!r}, dtype="auto", device_map="auto").eval()
processor = AutoProcessor.from_pretrained({model!r})"""


def method_code(value: Any) -> str:
    """A method, or a budget, as Python code that makes it: the settings that differ from the defaults.

    >>> from vlprune import Budget, FastV, Script
    >>> method_code(Script(keep=64, tau=0.2)), method_code(Script(192) + FastV(keep=Budget(layer_average=64)))
    ('Script(keep=64, tau=0.2)', 'Script(keep=192) + FastV(keep=Budget(layer_average=64))')
    """
    if isinstance(value, TwoStage):
        return f"{method_code(value.first)} + {method_code(value.then)}"
    if not is_dataclass(value):
        return repr(value)
    said = [
        f"{field.name}={method_code(getattr(value, field.name))}"
        for field in fields(value)
        if field.name == "keep" or field.default is MISSING or getattr(value, field.name) != field.default
    ]
    return f"{type(value).__name__}({', '.join(said)})"


def _names(value: Any) -> set[str]:
    """The names that `method_code` uses."""
    if isinstance(value, TwoStage):
        return _names(value.first) | _names(value.then)
    if not is_dataclass(value):
        return set()
    return {type(value).__name__}.union(*(_names(getattr(value, field.name)) for field in fields(value)))


def python_code(
    model: str,
    image: str,
    question: str,
    method: Method,
    *,
    encoder: str | None = None,
    length: int = 64,
    device: str = "cpu",
) -> str:
    """A program that asks the same question about the same image, and prints the answer and the kept tokens.

    The pocket model goes to `device`, for tokens that are nearly tied may be chosen otherwise on another.

    >>> from vlprune import Script
    >>> print(python_code("pocket", "image.png", "what color is the star?", Script(keep=16)))
    from vlprune import Script, attach, pocket
    <BLANKLINE>
    model, processor, clip = pocket.load()
    with attach(model, Script(keep=16), processor=processor, dual_encoder=clip) as pruner:
        print(pruner.ask_many('image.png', ['what color is the star?'], max_new_tokens=64, do_sample=False)[0])
        print(pruner.last.kept.tolist())
    <BLANKLINE>
    """
    own = model == "pocket"
    load = LOAD_POCKET if own else LOAD_HUB.format(model=model)
    if own and device != "cpu":
        load += MOVE_POCKET.format(device=device)
    names = sorted(
        _names(method) | {"attach"} | ({"pocket"} if own else set()), key=lambda name: (name.islower(), name)
    )
    return ASK_MANY.format(
        names=", ".join(names),
        load=load,
        method=method_code(method),
        encoder=_encoder_code(model, encoder),
        image=image,
        question=question,
        length=length,
    )


def _encoder_code(model: str, encoder: str | None) -> str:
    """The argument that names the dual encoder: the one that was named, the pocket model's own, or none."""
    if encoder is not None:
        return f", dual_encoder={encoder!r}"
    return ", dual_encoder=clip" if model == "pocket" else ""


def long_python_code(
    model: str, shown: str, question: str, method: Method, *, encoder: str | None = None, length: int = 64
) -> str:
    """The same as `python_code` for a video, and for a model without a chat template."""
    return LONG.format(
        names=", ".join(sorted(_names(method) | {"attach"}, key=lambda name: (name.islower(), name))),
        model=model,
        video=Path(shown).suffix.lower() in VIDEO_ENDINGS,
        read=f"read_clip({shown!r}, 16)" if Path(shown).suffix.lower() in VIDEO_ENDINGS else f"open_image({shown!r})",
        question=question,
        method=method_code(method),
        encoder=encoder,
        length=length,
    )


def command_line(
    model: str, image: str, question: str, method: str, keep: str | None, *, encoder: str | None = None
) -> str:
    """The command that asks the same; `method` and `keep` as its options take them.

    >>> command_line("pocket", "image.png", "what's there?", "script", "16")
    'vlprune ask image.png \\'what\\'"\\'"\\'s there?\\' --method script --keep 16 --show kept.png'
    """
    words = ["vlprune", "ask", image, question]
    words += [] if model == "pocket" else ["--model", model]
    words += [] if encoder is None else ["--dual-encoder", encoder]
    words += ["--method", method, *(["--keep", keep] if keep is not None else []), "--show", "kept.png"]
    return shlex.join(words)


def record_json(model: str, question: str, method: Method, record: Record, answer: str | None) -> str:
    """The record, with what was asked and answered, as JSON."""
    scores = {name: [round(value, 6) for value in values.tolist()] for name, values in record.scores.items()}
    found = {"model": model, "question": question, "answer": answer, "method": method_code(method)}
    return json.dumps({**found, "tokens": tokens_as_json(record), "scores": scores}, indent=1) + "\n"


def write_files(folder: Path, shown: Any, background: Any, record: Record, title: str, told: str) -> list[Path]:
    """Write the image, pictures of what was kept (PNG and SVG), and the record `told`; returns their paths."""
    from PIL import Image

    written = []
    if isinstance(shown, Image.Image):
        written.append(folder / "image.png")
        shown.save(written[-1])
    for name in ("kept.png", "kept.svg"):
        written.append(folder / name)
        save_picture(written[-1], background, [record], titles=[title])
    written.append(folder / "record.json")
    written[-1].write_text(told, encoding="utf-8")
    return written

"""Chat templates: writing a prompt with one, and finding the user's words in a prompt that one wrote."""

import re
from collections.abc import Sequence
from typing import Any


def check_processor(processor: Any) -> None:
    """Raise `TypeError` unless `processor` is None, a processor or a tokenizer."""
    if isinstance(processor, str):
        raise TypeError(
            f"processor={processor!r}: pass a loaded processor, such as AutoProcessor.from_pretrained({processor!r})."
        )
    tokenizer = getattr(processor, "tokenizer", processor)
    if processor is not None and not (callable(tokenizer) and hasattr(tokenizer, "decode")):
        raise TypeError(f"processor={processor!r}: pass the model's processor or tokenizer, or leave it out.")


def chat_inputs(processor: Any, image: Any, questions: Sequence[str]) -> Any:
    """The model's inputs for several questions about one image: one row each, in the processor's chat template."""
    if processor is None:
        raise ValueError("ask_many needs attach(..., processor=).")
    if isinstance(questions, str) or not questions or not all(isinstance(q, str) for q in questions):
        raise ValueError(f"questions={questions!r}: pass a list of at least one string.")
    placeholder = getattr(processor, "image_token", None)
    if placeholder and any(placeholder in question for question in questions):
        raise ValueError(f"questions={questions!r}: {placeholder!r} stands for an image in the prompt, leave it out.")
    prompts = []
    for question in questions:
        turn = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}
        prompts.append(processor.apply_chat_template([turn], add_generation_prompt=True, tokenize=False))
    images = [image] * len(prompts)
    return processor(images=images, text=prompts, padding=True, padding_side="left", return_tensors="pt")


def user_turn_marks(processor: Any) -> tuple[str, str] | None:
    """What the chat template writes before a user's text and after it, found by rendering a conversation of marks."""
    if getattr(processor, "chat_template", None) is None:
        processor = getattr(processor, "tokenizer", None)
    if getattr(processor, "chat_template", None) is None:
        return None
    said = ["vlprunefirst", "vlprunesecond", "vlprunethird"]
    for parts in (True, False):  # templates take a turn's content as a list of parts, or as a string
        turns = [
            {"role": role, "content": [{"type": "text", "text": text}] if parts else text}
            for role, text in zip(("user", "assistant", "user"), said)
        ]
        marks = _render_marks(processor, turns, said)
        if marks is not None:
            return marks
    return None


def _render_marks(processor: Any, turns: list[dict[str, Any]], said: list[str]) -> tuple[str, str] | None:
    from jinja2.exceptions import TemplateError

    try:
        text = processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False)
    except (TemplateError, TypeError):  # not the kind of conversation that this template takes
        return None
    pieces = re.split("|".join(said), text)
    if len(pieces) != 4 or "'type'" in text:
        return None
    before, _, between, after = pieces
    size = 0
    while size < min(len(before), len(between)) and before[-size - 1] == between[-size - 1]:
        size += 1
    header = before[len(before) - size :]
    return (header, after) if header.strip() else None


def last_between(text: str, header: str, after: str) -> str | None:
    """The last stretch of `text` after `header` and before `after`, whatever the spacing (decoding may change it).

    Marks are matched as they are written or, where that fails, in lower case (a tokenizer may lower all it reads).
    """
    places = [i for i, char in enumerate(text) if not char.isspace()]
    solid = "".join(text[i] for i in places)
    header, after = "".join(header.split()), "".join(after.split())
    if header not in solid:
        header, after = header.lower(), after.lower()
    start = solid.rfind(header)
    if start < 0:
        return None
    start += len(header)
    end = solid.find(after, start) if after else -1
    first = places[start] if start < len(places) else len(text)
    return text[first : places[end] if end >= 0 else len(text)]

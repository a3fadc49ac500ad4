"""Requests of lmms-eval as what a model is shown: chat turns, images and videos, and the question in them."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vlprune.pruning.question import clean_question

#: A line that begins an answer option: "A. a cat", "(B) a dog".
OPTION_LINE = re.compile(r"^[ \t]*(?:\([A-Z]\)|[A-Z][.:)])[ \t]+\S", re.MULTILINE)


@dataclass(frozen=True)
class Sample:
    """A document of a task, ready to be asked.

    `turns` are those of a chat, with {"type": "image"} or {"type": "video"} where an image or a video goes; `images`
    and `videos` (paths) are in that order. `question` is what a method chooses tokens by.
    """

    turns: list[dict[str, Any]]
    images: list[Any]
    videos: list[str]
    question: str


@dataclass(frozen=True)
class Request:
    """What lmms-eval asks for: a document by its task, split and number, and how to make turns or visuals of it.

    `key` names it in a file of answers: it changes with the prompt and with the settings of the generation.
    """

    key: str
    task: str
    split: str
    document: int
    text: str
    options: Mapping[str, Any]
    to_messages: Any = None
    to_visual: Any = None
    continuation: Any = None

    @classmethod
    def of(cls, instance: Any, *, simple: bool) -> Request:
        """An `Instance` of lmms-eval, as tasks make it for models of the chat interface, or of the simple one."""
        text, second, third, document, task, split = instance.args
        where = {"task": task, "split": split, "document": document, "text": text}
        if instance.request_type == "loglikelihood":
            said = second if isinstance(second, str) else ""
            key = _key(task, document, instance.idx, text, {"continuation": said})
            return cls(key, **where, options={}, to_visual=third, continuation=second)
        options, maker = (second, third) if simple else (third, second)
        key = _key(task, document, instance.idx, text, options)
        return cls(key, **where, options=options, **{"to_visual" if simple else "to_messages": maker})

    def sample(self, tasks: Mapping[str, Any]) -> Sample:
        """The document with its images decoded; `tasks` are the datasets of lmms-eval, by task and split."""
        found = tasks[self.task][self.split][self.document]
        if self.to_messages is not None:
            return sample_from_messages(self.to_messages(found), found)
        content: list[dict[str, Any]] = []
        for visual in self.to_visual(found) or [] if self.to_visual is not None else []:
            content.append({"type": "video" if isinstance(visual, str) else "image", "url": visual})
        content.append({"type": "text", "text": self.text})
        return sample_from_messages([{"role": "user", "content": content}], found)

    def continuation_of(self, tasks: Mapping[str, Any]) -> str:
        """The text whose likelihood is asked for."""
        if callable(self.continuation):
            return str(self.continuation(tasks[self.task][self.split][self.document]))
        return str(self.continuation)


def _key(task: str, document: int, index: int, text: str, options: Mapping[str, Any]) -> str:
    said = json.dumps([text, {name: options[name] for name in sorted(options)}], default=str)
    return f"{task}/{document}/{index}/{hashlib.blake2b(said.encode(), digest_size=6).hexdigest()}"


def sample_from_messages(messages: Sequence[Mapping[str, Any]], document: Mapping[str, Any]) -> Sample:
    """The chat turns of lmms-eval, whose images and videos stand in their content.

    >>> parts = [{"type": "image", "url": "..."}, {"type": "text", "text": "A cat?\\nSay yes."}]
    >>> found = sample_from_messages([{"role": "user", "content": parts}], {"question": "A cat?"})
    >>> found.turns[0]["content"][0], found.images, found.question
    ({'type': 'image'}, ['...'], 'A cat?')
    """
    turns: list[dict[str, Any]] = []
    images: list[Any] = []
    videos: list[str] = []
    for message in messages:
        content = []
        for part in message["content"]:
            kind = part["type"]
            if kind == "text":
                content.append({"type": "text", "text": part["text"]})
                continue
            if kind not in ("image", "video"):
                raise ValueError(f"type={kind!r}: a turn may hold text, images and videos.")
            (images if kind == "image" else videos).append(part["url"])
            content.append({"type": kind})
        turns.append({"role": message["role"], "content": content})
    said = " ".join(part["text"] for part in turns[-1]["content"] if part["type"] == "text")
    return Sample(turns, images, videos, find_question(document) or said)


def find_question(document: Mapping[str, Any]) -> str | None:
    """The question of a document, without answer options and without what a task writes around it.

    It is the document's field "question", up to the first of its answer options if it lists some. None if there is no
    such field: then the last turn of the prompt is the question, hints on the answer's format left out.

    >>> find_question({"question": "What is on the mat?\\n(A) a cat\\n(B) a dog", "choices": ["a cat", "a dog"]})
    'What is on the mat?'
    >>> find_question({"text": "What is on the mat?"}) is None
    True
    """
    text = document.get("question")
    if not isinstance(text, str):
        return None
    options = list(OPTION_LINE.finditer(text))
    if len(options) > 1 and text[: options[0].start()].strip():
        text = text[: options[0].start()]
    text = text.strip()
    return text if clean_question(text) else None

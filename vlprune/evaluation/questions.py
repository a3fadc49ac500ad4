"""Questions about images: of the pocket world, or of a file of one's own."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vlprune.errors import UserError
from vlprune.pocket.world import Scene, balanced_questions

if TYPE_CHECKING:
    from PIL import Image

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
MATCH_RULES = ("exact", "contains")
EXAMPLE = '{"image": "a.jpg", "question": "what is it?", "answer": "a cat"}'


@dataclass(frozen=True)
class ImageQuestion:
    """One question about one image.

    `answers` are the right ones. An image of the pocket world has its `scene`, in which the question is `about` some
    things; another has its `path`.
    """

    number: int
    image_name: str
    kind: str
    text: str
    answers: tuple[str, ...]
    scene: Scene | None = field(default=None, repr=False)
    about: tuple[int, ...] = ()
    path: Path | None = None

    def image(self) -> Image.Image:
        """The image, drawn or opened."""
        if self.scene is not None:
            from vlprune.pocket.render import images

            return images([self.scene])[0]
        from vlprune.media.image import ImageError, open_image

        assert self.path is not None
        try:
            return open_image(self.path)
        except ImageError as error:
            raise UserError(str(error)) from error


def pocket_questions(split: str | int, per_kind: int, start: int = 0) -> list[ImageQuestion]:
    """`per_kind` questions of each kind of the pocket world, numbered from `start`.

    >>> [question.text for question in pocket_questions("test", 1)][0]  # doctest: +ELLIPSIS
    'is there a ...?'
    """
    found = [
        (scene, asked) for scene, questions in balanced_questions(cast(str, split), per_kind) for asked in questions
    ]
    return [
        ImageQuestion(i, scene.name, asked.kind, asked.text, (asked.answer,), scene, asked.about)
        for i, (scene, asked) in enumerate(found, start=start)
    ]


def read_questions(path: Path, need_answers: bool = True) -> list[ImageQuestion]:
    """Read the questions of a JSONL file with {"image", "question", "answer"} in each line; answers may be a list.

    Image paths are relative to the file's folder; a "kind" is optional. Where no answers are needed, a folder of
    images will do.
    """
    if path.is_dir() and not need_answers:
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in IMAGE_SUFFIXES)
        if not files:
            raise UserError(f"--data {path}: the folder has no images ({', '.join(IMAGE_SUFFIXES)}).")
        return [
            ImageQuestion(i, file.name, "all", "describe the image.", (), path=file) for i, file in enumerate(files)
        ]
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = "is not text" if isinstance(error, UnicodeDecodeError) else f"cannot be read ({error.strerror})"
        raise UserError(f"--data {path} {reason}: pass a JSONL file of image, question, answer.") from error
    filled = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    questions = [_parse_line(path, number, line, i) for i, (number, line) in enumerate(filled)]
    if not questions:
        raise UserError(f"--data {path} has no lines.")
    return questions


def _parse_line(path: Path, number: int, line: str, i: int) -> ImageQuestion:
    """Question `i`, from line `number` of the file."""
    where = f"--data {path}, line {number}"
    try:
        found: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from error
    if not isinstance(found, dict):
        raise UserError(f"{where}: not an object, as in {EXAMPLE}.")
    for key in ("image", "question", "answer"):
        if found.get(key) in (None, "", []):
            raise UserError(f"{where}: it needs {key!r}, as in {EXAMPLE}.")
    for key in ("image", "question", "kind"):
        if not isinstance(found.get(key, ""), str):
            raise UserError(f"{where}: {key}={json.dumps(found[key])}: text, as in {EXAMPLE}.")
    image = path.parent / found["image"]
    if not image.is_file():
        raise UserError(f"{where}: there is no image {str(image)!r}.")
    answers = found["answer"] if isinstance(found["answer"], list) else [found["answer"]]
    for answer in answers:
        if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not normalize_answer(str(answer)):
            said = json.dumps(answer, ensure_ascii=False)
            raise UserError(f"{where}: answer={said}: a text with letters or digits, a number, or a list of them.")
    kind = found.get("kind") or "all"
    return ImageQuestion(i, found["image"], kind, found["question"], tuple(map(str, answers)), path=image)


def normalize_answer(text: str) -> str:
    """The words in lower case with one space between: letters, digits, hyphens and underscores; all else is a space.

    >>> normalize_answer(" Top-left, I think. ")
    'top-left i think'
    """
    signs = unicodedata.normalize("NFC", text.lower())
    # many scripts write vowels as marks of their own
    kept = (s if s.isalnum() or s in "-_" or unicodedata.category(s)[0] == "M" else " " for s in signs)
    return " ".join("".join(kept).split())


def is_right(text: str, answers: Sequence[str], match: str = "exact") -> bool:
    """Whether a text is one of the answers ("exact") or holds one of them as whole words ("contains").

    >>> is_right("A red one.", ["red"]), is_right("A red one.", ["red"], "contains"), is_right("Red.", ["red"])
    (False, True, True)
    """
    words = normalize_answer(text)
    if match == "contains":
        return any(normalize_answer(answer) and f" {normalize_answer(answer)} " in f" {words} " for answer in answers)
    return any(normalize_answer(answer) == words for answer in answers)

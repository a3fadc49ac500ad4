"""The questions that are asked: of the pocket world, or of a file of one's own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vlprune.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

    from vlprune.pocket.world import Scene

ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
MATCHES = ("exact", "contains")


@dataclass(frozen=True)
class Item:
    """One question about one image.

    `group` names the image; `answers` are the right ones. An image of the pocket world has its `scene`, in which the
    question is `about` some things; another has its `path`.
    """

    number: int
    group: str
    kind: str
    text: str
    answers: tuple[str, ...]
    scene: Scene | None = field(default=None, repr=False)
    about: tuple[int, ...] = ()
    path: Path | None = None

    def image(self) -> Image.Image:
        """The picture, drawn or opened."""
        if self.scene is not None:
            from vlprune.pocket.render import images

            return images([self.scene])[0]
        from vlprune.media.image import ImageError, open_image

        assert self.path is not None
        try:
            return open_image(self.path)
        except ImageError as error:
            raise UserError(str(error)) from error


def pocket_items(split: str | int, per_kind: int, start: int = 0) -> list[Item]:
    """So many questions of each kind of the pocket world; numbers count from `start`.

    >>> [item.text for item in pocket_items("test", 1)][0]  # doctest: +ELLIPSIS
    'is there a ...?'
    """
    from vlprune.pocket.world import benchmark

    found = [(scene, question) for scene, asked in benchmark(cast(str, split), per_kind) for question in asked]
    return [
        Item(i, scene.name, q.kind, q.text, (q.answer,), scene, q.about)
        for i, (scene, q) in enumerate(found, start=start)
    ]


def file_items(path: Path, need_answers: bool = True) -> list[Item]:
    """The questions of a JSONL file with {"image", "question", "answer"} in each line; answers may be a list.

    Image paths are relative to the file's folder; a "kind" is optional. Where no answers are needed, a folder of
    images will do.
    """
    if path.is_dir() and not need_answers:
        files = sorted(file for file in path.iterdir() if file.suffix.lower() in ENDINGS)
        if not files:
            raise UserError(f"--data {path}: the folder has no images ({', '.join(ENDINGS)}).")
        return [Item(i, file.name, "all", "describe the image.", (), path=file) for i, file in enumerate(files)]
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = "is not text" if isinstance(error, UnicodeDecodeError) else f"cannot be read ({error.strerror})"
        raise UserError(f"--data {path} {reason}: pass a JSONL file of image, question, answer.") from error
    filled = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    items = [_item(path, number, line, i) for i, (number, line) in enumerate(filled)]
    if not items:
        raise UserError(f"--data {path} has no lines.")
    return items


def _item(path: Path, number: int, line: str, i: int) -> Item:
    where = f"--data {path}, line {number}"
    try:
        found: Any = json.loads(line)
    except ValueError as error:
        raise UserError(f"{where}: no JSON ({error}).") from error
    for key in ("image", "question", "answer"):
        if not isinstance(found, dict) or not found.get(key):
            raise UserError(f'{where}: it needs {key!r}, as in {{"image": "a.jpg", "question": ..., "answer": ...}}.')
    image = path.parent / str(found["image"])
    if not image.is_file():
        raise UserError(f"{where}: there is no image {str(image)!r}.")
    truth = found["answer"] if isinstance(found["answer"], list) else [found["answer"]]
    kind = str(found.get("kind", "all"))
    return Item(i, str(found["image"]), kind, str(found["question"]), tuple(map(str, truth)), path=image)


def plain(text: str) -> str:
    """Words in lower case with one space between, without punctuation.

    >>> plain(" Top-left, I think. ")
    'top-left i think'
    """
    return " ".join(re.sub(r"[^\w\s-]", " ", text.lower()).split())


def right(said: str, answers: Sequence[str], match: str = "exact") -> bool:
    """Whether what was said is one of the answers ("exact") or holds one of them as whole words ("contains").

    >>> right("A red one.", ["red"]), right("A red one.", ["red"], "contains"), right("Red.", ["red"])
    (False, True, True)
    """
    words = plain(said)
    if match == "contains":
        return any(plain(answer) and f" {plain(answer)} " in f" {words} " for answer in answers)
    return any(plain(answer) == words for answer in answers)

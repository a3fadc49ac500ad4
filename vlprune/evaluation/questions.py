"""Questions about images and videos: of the pocket world, or of a file of one's own."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from vlprune.errors import UserError
from vlprune.pocket.world import Scene, balanced_questions

if TYPE_CHECKING:
    from PIL import Image

    from vlprune.media.video import Clip

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff")
MATCH_RULES = ("exact", "contains")
EXAMPLE = '{"image": "a.jpg", "question": "what is it?", "answer": "a cat"}'
BOXES = "around what is asked about, in pixels: [[left, top, right, bottom], ...], [] where there is nothing"
DEFAULT_FRAMES = 16  # of a video

#: Left, top, right and bottom in pixels of the image file.
Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class ImageQuestion:
    """One question about one image, or about one video.

    `answers` are the right ones. An image of the pocket world has its `scene`, in which the question is `about` some
    things; another has its `path`, and `boxes` around what is asked about, where these are known. Of a video so many
    `frames` are shown; 0 means an image. `resolution` is the side of the square that an image is resized to before the
    model's processor gets it, None for none.

    A benchmark's question has a `query`, which is `text` without answer options and hints and is what methods choose
    tokens by, a `rule` by which it is scored (one of `benchmark_scores.RULES`), and its `source_id` there.
    """

    number: int
    image_name: str
    kind: str
    text: str
    answers: tuple[str, ...]
    scene: Scene | None = field(default=None, repr=False)
    about: tuple[int, ...] = ()
    path: Path | None = None
    boxes: tuple[Box, ...] | None = None
    frames: int = 0
    resolution: int | None = None
    query: str | None = None
    rule: str = ""
    source_id: str | None = None

    def image(self) -> Image.Image:
        """The image, drawn or opened; of a video its first frame."""
        shown = self.shown()
        if not self.frames:
            return cast("Image.Image", shown)
        from PIL import Image

        return Image.fromarray(cast("Clip", shown).frames[0])

    def shown(self) -> Image.Image | Clip:
        """What the model is shown: the image, or frames of the video."""
        if self.scene is not None:
            from vlprune.pocket.render import images

            return resize_to(images([self.scene])[0], self.resolution)
        from vlprune.media.image import ImageError, open_image
        from vlprune.media.video import read_clip, read_frames

        assert self.path is not None
        try:
            if self.frames:
                return (read_frames if self.path.is_dir() else read_clip)(self.path, self.frames)
            return resize_to(open_image(self.path), self.resolution)
        except ImageError as error:
            raise UserError(str(error)) from error

    def image_size(self) -> tuple[int, int]:
        """(width, height) of the image as it is before it is resized, which is what boxes are in."""
        return replace(self, resolution=None).image().size


def resize_to(image: Image.Image, resolution: int | None) -> Image.Image:
    """The image, resized to a square of that side; the image itself if it is None."""
    if resolution is None:
        return image
    from PIL import Image

    return image.resize((resolution, resolution), Image.Resampling.BICUBIC)


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


def longest_answer(processor: Any, questions: Sequence[ImageQuestion]) -> int:
    """How many tokens the longest right answer has.

    >>> from vlprune import pocket
    >>> longest_answer(pocket.load()[1], pocket_questions("test", 20))
    1
    """
    answers = {answer for question in questions for answer in question.answers}
    return max(len(processor.tokenizer(answer, add_special_tokens=False).input_ids) for answer in answers)


def read_questions(
    path: Path, need_answers: bool = True, *, need_boxes: bool = False, frames: int = DEFAULT_FRAMES
) -> list[ImageQuestion]:
    """Read the questions of a JSONL file with {"image", "question", "answer"} in each line; answers may be a list.

    In place of "image" may stand "video": a file, or a folder of frames as images, of which `frames` are shown. Paths
    are relative to the file's folder. "kind" and "boxes" are optional; with `need_boxes` each line needs its boxes.
    Where no answers are needed, a folder of images will do.
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
        raise UserError(f"--data {path} {reason}: pass a JSONL file of image (or video), question, answer.") from error
    filled = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    questions = [_parse_line(path, number, line, i, frames) for i, (number, line) in enumerate(filled)]
    for (number, _), question in zip(filled, questions):
        if need_boxes and question.boxes is None:
            raise UserError(f"--data {path}, line {number}: it needs 'boxes', {BOXES}.")
    if not questions:
        raise UserError(f"--data {path} has no lines.")
    return questions


def _parse_line(path: Path, number: int, line: str, i: int, frames: int) -> ImageQuestion:
    """Question `i`, from line `number` of the file."""
    where = f"--data {path}, line {number}"
    try:
        found: Any = json.loads(line)
    except json.JSONDecodeError as error:
        raise UserError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from error
    if not isinstance(found, dict):
        raise UserError(f"{where}: not an object, as in {EXAMPLE}.")
    shown = "video" if found.get("video") is not None else "image"
    if shown == "video" and found.get("image") is not None:
        raise UserError(f"{where}: it has 'image' and 'video': a question is about one of them.")
    for key in (shown, "question", "answer"):
        if found.get(key) in (None, "", []):
            raise UserError(f"{where}: it needs {key!r}, as in {EXAMPLE}.")
    for key in (shown, "question", "kind"):
        if not isinstance(found.get(key, ""), str):
            raise UserError(f"{where}: {key}={json.dumps(found[key])}: text, as in {EXAMPLE}.")
    place = path.parent / found[shown]
    if not (place.is_file() or (shown == "video" and place.is_dir())):
        raise UserError(f"{where}: there is no {shown} {str(place)!r}.")
    answers = found["answer"] if isinstance(found["answer"], list) else [found["answer"]]
    for answer in answers:
        if isinstance(answer, bool) or not isinstance(answer, str | int | float) or not normalize_answer(str(answer)):
            said = json.dumps(answer, ensure_ascii=False)
            raise UserError(f"{where}: answer={said}: a text with letters or digits, a number, or a list of them.")
    return ImageQuestion(
        i,
        found[shown],
        found.get("kind") or "all",
        found["question"],
        tuple(map(str, answers)),
        path=place,
        boxes=_parse_boxes(where, found["boxes"]) if "boxes" in found else None,
        frames=frames if shown == "video" else 0,
    )


def _parse_boxes(where: str, boxes: Any) -> tuple[Box, ...]:
    """The boxes of a line."""

    def is_box(box: Any) -> bool:
        numbers = isinstance(box, list) and len(box) == 4 and all(type(side) in (int, float) for side in box)
        return numbers and 0 <= box[0] < box[2] and 0 <= box[1] < box[3]

    if not isinstance(boxes, list) or not all(map(is_box, boxes)):
        raise UserError(f"{where}: boxes={json.dumps(boxes)}: a list of boxes {BOXES}.")
    return tuple((left, top, right, bottom) for left, top, right, bottom in boxes)


def normalize_answer(text: str) -> str:
    """The words in lower case with one space between: letters, digits, hyphens and underscores; all else is a space.

    >>> normalize_answer(" Top-left, I think. ")
    'top-left i think'
    """
    signs = unicodedata.normalize("NFC", text.lower())
    # many scripts write vowels as marks of their own
    kept = (s if s.isalnum() or s in "-_" or unicodedata.category(s)[0] == "M" else " " for s in signs)
    return " ".join("".join(kept).split())


def score_answer(question: ImageQuestion, text: str, match: str = "exact") -> float:
    """The score of an answer from 0 to 1, by the benchmark's rule or else by `match`; 0 if no answer is known."""
    from vlprune.evaluation.benchmark_scores import RULES

    if question.rule:
        return RULES[question.rule](text, question.answers) if question.answers else 0.0
    return float(is_right(text, question.answers, match))


def is_right(text: str, answers: Sequence[str], match: str = "exact") -> bool:
    """Whether a text is one of the answers ("exact") or holds one of them as whole words ("contains").

    >>> is_right("A red one.", ["red"]), is_right("A red one.", ["red"], "contains"), is_right("Red.", ["red"])
    (False, True, True)
    """
    words = normalize_answer(text)
    if match == "contains":
        return any(normalize_answer(answer) and f" {normalize_answer(answer)} " in f" {words} " for answer in answers)
    return any(normalize_answer(answer) == words for answer in answers)

"""Annotation files of known benchmarks, as they are distributed, read from local folders."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vlprune.errors import UserError
from vlprune.evaluation.questions import ImageQuestion

WORD_HINT = "\nAnswer the question using a single word or phrase."
LETTER_HINT = "\nAnswer with the option's letter from the given choices directly."
VIZWIZ_HINT = "\nWhen the provided information is insufficient, respond with 'Unanswerable'." + WORD_HINT
NAMES = ("POPE", "GQA", "TextVQA", "VQAv2", "VizWiz", "ScienceQA", "MME", "ChartQA")
#: Folders beside an annotation file in which its images may lie.
IMAGE_FOLDERS = (".", "images", "png", "train_images", "val2014", "test2015", "val", "test", "../png", "../images")


class Entry(NamedTuple):
    """A question of a benchmark: its number there, the names that its image may have, and what is right."""

    where: str
    number: str
    images: tuple[str, ...]
    question: str
    answers: tuple[str, ...]
    prompt: str
    kind: str
    rule: str


def read_benchmark(path: Path) -> list[ImageQuestion] | None:
    """The questions of a benchmark's annotation file, or of MME's folder; None if it is none that is known.

    The file tells by its shape which benchmark it is. Images are looked for beside it, and in folders there that
    benchmarks use (`images`, `train_images`, `val2014`, `png`, ...). Of VQAv2 the file of the questions is read, and
    the answers from that of the annotations beside it, where there is one.
    """
    found = _find_entries(path)
    if found is None:
        return None
    entries = list(found)
    if not entries:
        raise UserError(f"--data {path}: it has no questions about images.")
    folders = [folder for name in IMAGE_FOLDERS if (folder := path.parent / name).is_dir()]
    folders = [path, *folders] if path.is_dir() else folders
    return [_question(i, entry, folders) for i, entry in enumerate(entries)]


def _question(i: int, entry: Entry, folders: list[Path]) -> ImageQuestion:
    """An entry with the file of its image."""
    for folder in folders:
        for name in entry.images:
            if (folder / name).is_file():
                return ImageQuestion(
                    i,
                    name,
                    entry.kind,
                    entry.prompt,
                    entry.answers,
                    path=folder / name,
                    query=entry.question,
                    rule=entry.rule,
                    source_id=entry.number,
                )
    looked = ", ".join(str(folder) for folder in folders)
    raise UserError(f"{entry.where}: there is no image {entry.images[0]!r} in {looked}.")


def _find_entries(path: Path) -> Iterator[Entry] | None:
    """The entries of the first benchmark whose shape the file has."""
    if path.is_dir():
        return _read_mme(path) if any(path.glob("*/*.txt")) or any(path.glob("*/questions_answers_YN")) else None
    if not path.is_file() or path.suffix not in (".json", ".jsonl"):
        return None
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError):
        return None  # the reader of plain files says what is wrong
    first = text.lstrip().partition("\n")[0]
    if first.startswith("{") and '"label"' in first and '"text"' in first:
        return _read_pope(path, text)
    if path.suffix == ".jsonl":
        return None
    try:
        found = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"--data {path}, line {error.lineno}: not JSON ({error.msg} at column {error.colno})."
        ) from error
    return _read_json(path, found)


def _read_json(path: Path, found: Any) -> Iterator[Entry] | None:
    """The entries of a file that is one JSON value."""
    one = next(iter(found.values()), None) if isinstance(found, dict) else found[0] if found else None
    if isinstance(found, dict) and isinstance(found.get("questions"), list):
        return _read_vqa(path, found["questions"])
    if isinstance(found, dict) and isinstance(found.get("data"), list):
        return _read_textvqa(path, found["data"])
    if not isinstance(one, dict):
        raise UserError(f"--data {path}: no annotation file that is known: {', '.join(NAMES)}, or a JSONL file.")
    if isinstance(found, dict) and "imageId" in one:
        return _read_gqa(path, found)
    if isinstance(found, dict) and "choices" in one:
        return _read_scienceqa(path, found)
    if isinstance(found, list) and "imgname" in one:
        return _read_chartqa(path, found)
    if isinstance(found, list) and "image" in one and "question" in one:
        return _read_vizwiz(path, found)
    raise UserError(f"--data {path}: no annotation file that is known: {', '.join(NAMES)}, or a JSONL file.")


def _get(where: str, entry: Any, name: str) -> Any:
    """A field that an entry must have."""
    if not isinstance(entry, Mapping):
        raise UserError(f"{where}: {json.dumps(entry)[:60]}: an object is needed.")
    if entry.get(name) is None:
        raise UserError(f"{where}: it needs {name!r}; it has {', '.join(entry) or 'nothing'}.")
    return entry[name]


def _read_pope(path: Path, text: str) -> Iterator[Entry]:
    """POPE: lines of {"question_id", "image", "text", "label"}."""
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        where = f"--data {path}, line {number}"
        try:
            one = json.loads(line)
        except json.JSONDecodeError as error:
            raise UserError(f"{where}: not JSON ({error.msg} at column {error.colno}).") from error
        question, label = _get(where, one, "text"), str(_get(where, one, "label"))
        if label not in ("yes", "no"):
            raise UserError(f"{where}: label={label!r}: yes or no.")
        place = str(_get(where, one, "question_id")), (str(_get(where, one, "image")),)
        yield Entry(where, *place, question, (label,), question + WORD_HINT, "pope", "pope")


def _read_gqa(path: Path, found: Mapping[str, Any]) -> Iterator[Entry]:
    """GQA: an object of {"imageId", "question", "answer"} by the question's number."""
    for number, one in found.items():
        where = f"--data {path}, question {number}"
        question, name = _get(where, one, "question"), _get(where, one, "imageId")
        answers = (str(one["answer"]),) if one.get("answer") is not None else ()
        yield Entry(where, number, (f"{name}.jpg",), question, answers, question + WORD_HINT, "gqa", "gqa")


def _read_textvqa(path: Path, found: list[Any]) -> Iterator[Entry]:
    """TextVQA: {"data": [{"question_id", "image_id", "question", "answers"}]}."""
    for i, one in enumerate(found):
        where = f"--data {path}, data[{i}]"
        question, name = _get(where, one, "question"), _get(where, one, "image_id")
        number, answers = str(_get(where, one, "question_id")), tuple(map(str, one.get("answers") or ()))
        prompt = question.capitalize() + WORD_HINT
        yield Entry(where, number, (f"{name}.jpg",), question, answers, prompt, "textvqa", "vqa")


def _read_vqa(path: Path, found: list[Any]) -> Iterator[Entry]:
    """VQAv2: {"questions": [{"question_id", "image_id", "question"}]}, answers in the annotations' file beside it."""
    answers = _vqa_answers(path)
    split = next((part for part in ("train2014", "val2014", "test2015") if part in path.name), "val2014")
    for i, one in enumerate(found):
        where = f"--data {path}, questions[{i}]"
        question, image = _get(where, one, "question"), int(_get(where, one, "image_id"))
        number = str(_get(where, one, "question_id"))
        names = (f"COCO_{split}_{image:012d}.jpg", f"{split}/COCO_{split}_{image:012d}.jpg", f"{image:012d}.jpg")
        if answers and number not in answers:
            raise UserError(f"{where}: the annotations have no question {number}.")
        yield Entry(where, number, names, question, answers.get(number, ()), question + WORD_HINT, "vqav2", "vqa")


def _vqa_answers(path: Path) -> dict[str, tuple[str, ...]]:
    """The ten answers to each question, from the file of annotations beside that of the questions; {} without one."""
    name = path.name.replace("OpenEnded_", "").replace("_questions", "_annotations")
    beside = path.with_name(name)
    if name == path.name or not beside.is_file():
        return {}
    try:
        found = json.loads(beside.read_text(encoding="utf-8-sig"))["annotations"]
        return {str(one["question_id"]): tuple(str(said["answer"]) for said in one["answers"]) for one in found}
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"--data {path}: the annotations in {beside} cannot be read ({error!r}).") from error


def _read_vizwiz(path: Path, found: list[Any]) -> Iterator[Entry]:
    """VizWiz: a list of {"image", "question", "answers"}."""
    for i, one in enumerate(found):
        where = f"--data {path}, [{i}]"
        question, name = _get(where, one, "question"), str(_get(where, one, "image"))
        answers = tuple(str(_get(where, said, "answer")) for said in one.get("answers") or ())
        yield Entry(where, name, (name,), question, answers, question + VIZWIZ_HINT, "vizwiz", "vqa")


def _read_scienceqa(path: Path, found: Mapping[str, Any]) -> Iterator[Entry]:
    """ScienceQA: an object of {"question", "choices", "answer", "hint", "image", "split"}; of it, what has an image."""
    for number, one in found.items():
        where = f"--data {path}, question {number}"
        if not isinstance(one, Mapping) or not one.get("image") or one.get("split", "test") != "test":
            continue
        question, choices, right = (_get(where, one, name) for name in ("question", "choices", "answer"))
        if not isinstance(right, int) or not 0 <= right < len(choices):
            raise UserError(f"{where}: answer={right!r}: the number of one of its {len(choices)} choices, from 0 on.")
        listed = "\n".join(f"{chr(65 + i)}. {choice}" for i, choice in enumerate(choices))
        context = f"Context: {one['hint']}\n" if one.get("hint") else ""
        names = (f"{number}/{one['image']}", f"test/{number}/{one['image']}", str(one["image"]))
        prompt = f"{context}{question}\n{listed}{LETTER_HINT}"
        yield Entry(where, number, names, question, (chr(65 + right),), prompt, "scienceqa", "letter")


def _read_mme(folder: Path) -> Iterator[Entry]:
    """MME: a folder for each subtask, with a text file of two questions beside each image, a tab before the answer."""
    for file in sorted(folder.rglob("*.txt")):
        parts = [part for part in file.relative_to(folder).parts[:-1] if part != "questions_answers_YN"]
        if len(parts) != 1:
            continue
        for number, line in enumerate(file.read_text(encoding="utf-8-sig").splitlines(), start=1):
            if not line.strip():
                continue
            where = f"--data {file}, line {number}"
            question, tab, answer = line.rpartition("\t")
            if not tab or answer.strip().lower() not in ("yes", "no"):
                raise UserError(f"{where}: a question, a tab, and Yes or No.")
            near = [f"{parts[0]}/{sub}{file.stem}{end}" for sub in ("", "images/") for end in (".png", ".jpg", ".jpeg")]
            prompt = question.replace(" Please answer yes or no.", "") + WORD_HINT
            kind = f"mme/{parts[0]}"
            yield Entry(where, f"{file.stem}/{number}", tuple(near), question, (answer.strip(),), prompt, kind, "mme")


def _read_chartqa(path: Path, found: list[Any]) -> Iterator[Entry]:
    """ChartQA: a list of {"imgname", "query", "label"}."""
    for i, one in enumerate(found):
        where = f"--data {path}, [{i}]"
        question, name = _get(where, one, "query"), str(_get(where, one, "imgname"))
        answer = str(_get(where, one, "label"))
        prompt = question + "\nAnswer the question with a single word."
        yield Entry(where, str(i), (name,), question, (answer,), prompt, "chartqa", "relaxed")


def submission_lines(questions: list[ImageQuestion], answers: Mapping[int, str]) -> list[dict[str, Any]] | None:
    """What the test servers of VQAv2 and VizWiz take, of answers by the question's number; None for other questions."""
    kinds = {question.kind for question in questions}
    if kinds == {"vqav2"}:
        return [{"question_id": int(q.source_id or 0), "answer": answers[q.number]} for q in questions]
    if kinds == {"vizwiz"}:
        return [{"image": q.image_name, "answer": answers[q.number]} for q in questions]
    return None

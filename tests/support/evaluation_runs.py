"""Files that runs read and write, and answers without a run folder."""

import json
import re
from pathlib import Path

from vlprune.evaluation.answers import generate_answers
from vlprune.evaluation.questions import pocket_questions


def read_lines(folder, cell):
    """The answers of a cell, read from its file."""
    file = Path(folder, "answers", re.sub(r"[^\w.=@+-]", "_", cell) + ".jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


def write_questions(folder):
    """Scenes of the pocket world as PNG files, and a JSONL file with questions about them."""
    questions = pocket_questions("validation", 1)
    names = {question: f"{question.image_name.replace('/', '-')}.png" for question in questions}
    for question, name in names.items():
        question.image().save(folder / name)
    lines = [
        {"image": name, "question": question.text, "answer": question.answers[0], "kind": question.kind}
        for question, name in names.items()
    ]
    path = folder / "data.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return path


def answer_and_kept(loaded, questions, methods, **options):
    """By method and question: the answer, and which tokens were kept."""
    found = {}
    for answered in generate_answers(loaded, questions, methods, **options):
        assert answered.reason is None, answered.reason
        for question, text, records in zip(answered.questions, answered.texts, answered.records):
            found[answered.method, question.number] = (text, records[0].kept.tolist())
    return found

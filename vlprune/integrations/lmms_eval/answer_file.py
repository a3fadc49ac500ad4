"""Answers on disk, each written as soon as it is given, so that a run that was stopped loses none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vlprune.media.outputs import write_text


class AnswerFile:
    """A JSONL file of answers by key, and those of other processes beside it.

    The processes of one run write to NAME.0.jsonl, NAME.1.jsonl and so on, and each reads all of them at its start.

    >>> import tempfile
    >>> name = Path(tempfile.mkdtemp()) / "script@64"
    >>> AnswerFile(name, process=1).append([{"key": "pope/0", "answer": "yes"}])
    >>> AnswerFile(name, process=0).known
    {'pope/0': {'key': 'pope/0', 'answer': 'yes'}}
    """

    def __init__(self, name: str | Path, process: int = 0) -> None:
        name = Path(name)
        self.path = name.with_name(f"{name.name}.{process}.jsonl")
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.known: dict[str, dict[str, Any]] = {}
        for file in sorted(name.parent.glob(f"{_escaped(name.name)}.*.jsonl")):
            text = file.read_text(encoding="utf-8")
            complete, _, torn = text.rpartition("\n")
            if torn and file == self.path:  # the process was killed while it wrote
                write_text(file, complete + "\n" if complete else "")
            self._learn(json.loads(line) for line in complete.splitlines())

    def _learn(self, lines: Iterable[dict[str, Any]]) -> None:
        self.known.update((line["key"], line) for line in lines)

    def append(self, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write answers; each line has its "key"."""
        added = [dict(line) for line in lines]
        with self.path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in added))
        self._learn(added)


def _escaped(name: str) -> str:
    """A name as a pattern of `glob` that finds only itself."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in name)

"""A run directory: what was asked for, every answer as it comes, and what was found."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from vlprune.errors import UserError

MANIFEST = "manifest.json"


class Run:
    """A folder with `manifest.json`, one JSONL file of answers per cell (a method at a budget), and the result.

    Opening a folder again goes on where it stopped; with other settings it is refused.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> run = Run(folder, "eval", {"questions": 6})
    >>> run.append("script@64", [{"q": 0, "right": True}])
    >>> Run(folder, "eval", {"questions": 6}).lines("script@64")
    [{'q': 0, 'right': True}]
    >>> Run(folder, "eval", {"questions": 7})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    vlprune.errors.UserError: --out ... holds a run with questions=6, not 7: repeat its settings, or choose another ...
    """

    def __init__(
        self, folder: str | Path, command: str, settings: Mapping[str, Any], asked: Mapping[str, Any] | None = None
    ) -> None:
        """`settings` must be the same whenever the run is opened; `asked` may change, and the last one is kept."""
        self.folder = Path(folder)
        wanted = json.loads(json.dumps({"command": command, **settings}))
        path = self.folder / MANIFEST
        if path.is_file():
            self.manifest = read_manifest(self.folder)
            self._check("", self.manifest["settings"], wanted)
        else:
            if self.folder.exists() and (not self.folder.is_dir() or any(self.folder.iterdir())):
                raise UserError(f"--out {folder} is there already and holds no run: choose another folder.")
            self.manifest = {"settings": wanted, "methods": {}, "refused": {}, "machine": machine()}
            try:
                (self.folder / "answers").mkdir(parents=True)
            except OSError as error:
                raise UserError(f"--out {folder} cannot be made ({error.strerror}).") from error
        self.manifest["asked"] = dict(asked or {})
        self._write()

    def _check(self, what: str, known: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        for name in {**known, **wanted}:
            if known.get(name) != wanted.get(name):
                raise UserError(
                    f"--out {self.folder} holds a run with {what}{name}={known.get(name)}, not {wanted.get(name)}: "
                    "repeat its settings, or choose another folder."
                )

    def _write(self) -> None:
        text = json.dumps(self.manifest, indent=1) + "\n"
        replace_file(self.folder / MANIFEST, text)

    def note_device(self, device: Any) -> None:
        """Write down what the model ran on last."""
        import torch

        threads = f"CPU, {torch.get_num_threads()} threads"
        self.manifest["machine"]["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else threads
        self._write()

    def note_methods(self, methods: Mapping[str, object]) -> None:
        """Write down what the cells are; one that means something else than before is refused."""
        said = {name: repr(method) for name, method in methods.items()}
        known = self.manifest["methods"]
        self._check("", {name: known[name] for name in said if name in known}, {n: said[n] for n in said if n in known})
        known.update(said)
        self._write()

    def note_refused(self, asked: Iterable[str], reasons: Mapping[str, str]) -> None:
        """Write down which of the cells that were asked could not run, and why."""
        known = {cell: reason for cell, reason in self.refused.items() if cell not in set(asked)}
        self.manifest["refused"] = {**known, **reasons}
        self._write()

    @property
    def refused(self) -> dict[str, str]:
        return dict(self.manifest["refused"])

    def _file(self, cell: str) -> Path:
        return self.folder / "answers" / (re.sub(r"[^\w.=@+-]", "_", cell) + ".jsonl")

    def lines(self, cell: str) -> list[dict[str, Any]]:
        """The answers of a cell so far. A last line that was cut off is dropped from the file."""
        path = self._file(cell)
        if not path.is_file():
            return []
        text = path.read_text(encoding="utf-8")
        whole, _, torn = text.rpartition("\n")
        if torn:
            replace_file(path, whole + "\n" if whole else "")
        return [json.loads(line) for line in whole.splitlines()]

    def append(self, cell: str, lines: Iterable[Mapping[str, Any]]) -> None:
        with self._file(cell).open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run, or `UserError` where there is none."""
    try:
        found: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{str(folder)!r} holds no run of `vlprune eval` or `vlprune study`.") from None
    except (OSError, ValueError) as error:
        raise UserError(f"{str(folder / MANIFEST)!r} cannot be read ({error}).") from error
    return found


def default_folder(command: str, settings: Mapping[str, Any]) -> Path:
    """The first of runs/NAME, runs/NAME-2, ... that is free or holds a run with these settings, to go on with."""
    name = command.split()[-1]
    if settings.get("data"):
        name += f"-{Path(settings['data']).stem}"
    name += "-small" * bool(settings.get("small"))
    wanted = json.loads(json.dumps({"command": command, **settings}))
    for folder in (Path("runs", name + (f"-{i}" if i > 1 else "")) for i in count(1)):
        if not folder.exists():
            return folder
        if (folder / MANIFEST).is_file() and read_manifest(folder)["settings"] == wanted:
            return folder
    raise AssertionError("there is always a free number")


def files_of(folder: Path) -> list[Path]:
    """The files of a run that a report is made of."""
    return [folder / MANIFEST, folder / "result.json", *folder.glob("*.png"), *folder.glob("answers/*")]


def command_line(manifest: Mapping[str, Any]) -> str:
    """The command that makes a run like this one.

    >>> command_line({"settings": {"command": "study graph", "clip": None, "keep": [0.1], "small": True}, "asked": {}})
    'vlprune study graph --keep 0.1 --small'
    """
    words = ["vlprune", manifest["settings"]["command"]]
    for name, value in {**manifest["settings"], **manifest["asked"]}.items():
        if name in ("command", "digest") or value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(shlex.quote(",".join(map(str, value)) if isinstance(value, list) else str(value)))
    return " ".join(words)


def replace_file(path: Path, text: str) -> None:
    """Write a file in one go, so that no reader and no crash meets half of it."""
    half = path.with_name(path.name + ".part")
    half.write_text(text, encoding="utf-8")
    os.replace(half, path)


def machine() -> dict[str, str]:
    """What the figures were made with."""
    import torch
    import transformers

    from vlprune.version import __version__

    found = {"vlprune": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
    return {**found, "python": platform.python_version()}

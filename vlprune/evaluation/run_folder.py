"""The folder of a run: its settings, every answer as soon as it is given, and the result."""

from __future__ import annotations

import json
import platform
import re
import shlex
from collections.abc import Iterable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from vlprune.errors import UserError
from vlprune.media.outputs import part_of, write_text

MANIFEST = "manifest.json"


class RunFolder:
    """A folder with `manifest.json`, one JSONL file of answers per cell (a method at a budget), and the result.

    A folder that holds a run with the same settings is continued; one with other settings is refused.

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> run = RunFolder(folder, "eval", {"questions": 6})
    >>> run.append_answers("script@64", [{"q": 0, "right": True}])
    >>> RunFolder(folder, "eval", {"questions": 6}).read_answers("script@64")
    [{'q': 0, 'right': True}]
    >>> RunFolder(folder, "eval", {"questions": 7})  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    vlprune.errors.UserError: --out ... holds a run with questions=6, not 7: repeat its settings, or choose another ...
    """

    def __init__(
        self, folder: str | Path, command: str, settings: Mapping[str, Any], asked: Mapping[str, Any] | None = None
    ) -> None:
        """`settings` must be the same whenever the run is opened; `asked` may differ, and the last one is saved."""
        self.path = Path(folder)
        wanted = json.loads(json.dumps({"command": command, **settings}))
        if (self.path / MANIFEST).is_file():
            self.manifest = read_manifest(self.path)
            self._refuse_changes(self.manifest["settings"], wanted)
        else:
            if self.path.exists() and not _is_beginning(self.path):
                raise UserError(f"--out {folder} is there already and holds no run: choose another folder.")
            self.manifest = {"settings": wanted, "methods": {}, "refused": {}, "machine": software_versions()}
            try:
                (self.path / "answers").mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"--out {folder} cannot be made ({error.strerror}).") from error
        self.manifest["asked"] = dict(asked or {})
        self._save_manifest()

    def _refuse_changes(self, known: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
        """Raise `UserError` if a setting is not what it was."""
        for name in {**known, **wanted}:
            if known.get(name) != wanted.get(name):
                raise UserError(
                    f"--out {self.path} holds a run with {name}={known.get(name)}, not {wanted.get(name)}: "
                    "repeat its settings, or choose another folder."
                )

    def _save_manifest(self) -> None:
        write_text(self.path / MANIFEST, json.dumps(self.manifest, indent=1) + "\n")

    def save_device(self, device: Any) -> None:
        """Save the name of the device that the model runs on."""
        import torch

        threads = f"CPU, {torch.get_num_threads()} threads"
        self.manifest["machine"]["device"] = torch.cuda.get_device_name(device) if device.type == "cuda" else threads
        self._save_manifest()

    def save_methods(self, methods: Mapping[str, object]) -> None:
        """Save the settings of each cell's method; a cell that had other ones is refused."""
        said = {name: repr(method) for name, method in methods.items()}
        known = self.manifest["methods"]
        both = [name for name in said if name in known]
        self._refuse_changes({name: known[name] for name in both}, {name: said[name] for name in both})
        known.update(said)
        self._save_manifest()

    def save_refused(self, asked: Iterable[str], reasons: Mapping[str, str]) -> None:
        """Save which of the cells that were asked could not run, and why."""
        known = {cell: reason for cell, reason in self.refused.items() if cell not in set(asked)}
        self.manifest["refused"] = {**known, **reasons}
        self._save_manifest()

    @property
    def refused(self) -> dict[str, str]:
        """The cells that could not run, with the reason."""
        return dict(self.manifest["refused"])

    def _answers_file(self, cell: str) -> Path:
        return self.path / "answers" / (re.sub(r"[^\w.=@+-]", "_", cell) + ".jsonl")

    def read_answers(self, cell: str) -> list[dict[str, Any]]:
        """The answers of a cell so far; a last line that was cut off is dropped from the file."""
        path = self._answers_file(cell)
        if not path.is_file():
            return []
        text = path.read_text(encoding="utf-8")
        complete, _, torn = text.rpartition("\n")
        if torn:
            write_text(path, complete + "\n" if complete else "")
        return [json.loads(line) for line in complete.splitlines()]

    def append_answers(self, cell: str, lines: Iterable[Mapping[str, Any]]) -> None:
        """Write answers behind those that the cell has."""
        with self._answers_file(cell).open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))


def read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a run; raises `UserError` where there is none."""
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
        name += f"-{Path(settings['data']).resolve().stem}"  # resolved, as "." has no name
    name += "-small" * bool(settings.get("small"))
    wanted = json.loads(json.dumps({"command": command, **settings}))
    for folder in (Path("runs", name + (f"-{i}" if i > 1 else "")) for i in count(1)):
        if not folder.exists() or _is_beginning(folder):
            return folder
        if (folder / MANIFEST).is_file() and read_manifest(folder)["settings"] == wanted:
            return folder
    raise AssertionError("there is always a free number")


def _is_beginning(folder: Path) -> bool:
    """Whether a folder holds nothing, or what a run leaves that was killed before its manifest was written."""
    if not folder.is_dir():
        return False
    inside = {path.name: path for path in folder.iterdir()}
    inside.pop(part_of(folder / MANIFEST).name, None)
    answers = inside.pop("answers", None)
    return not inside and (answers is None or (answers.is_dir() and not any(answers.iterdir())))


def report_inputs(folder: Path) -> list[Path]:
    """The files of a run that a report is made from."""
    return [folder / MANIFEST, folder / "result.json", *folder.glob("*.png"), *folder.glob("answers/*")]


def command_line(manifest: Mapping[str, Any]) -> str:
    """The command that makes a run like this one.

    >>> command_line({"settings": {"command": "study graph", "seed": 0, "keep": [0.1], "small": True}, "asked": {}})
    'vlprune study graph --seed 0 --keep 0.1 --small'
    """
    words = ["vlprune", manifest["settings"]["command"]]
    for name, value in {**manifest["settings"], **manifest["asked"]}.items():
        if name in ("command", "digest") or value is None or value is False:
            continue
        words.append("--" + name.replace("_", "-"))
        if value is not True:
            words.append(shlex.quote(",".join(map(str, value)) if isinstance(value, list) else str(value)))
    return " ".join(words)


def software_versions() -> dict[str, str]:
    """The versions of vlprune and of what its numbers depend on."""
    import torch
    import transformers

    from vlprune.version import __version__

    found = {"vlprune": __version__, "torch": torch.__version__, "transformers": transformers.__version__}
    return {**found, "python": platform.python_version()}

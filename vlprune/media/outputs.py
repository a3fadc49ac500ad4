"""Files that a command writes: never one that it reads, and none of another program unless told to."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

#: Stands in every file that we write (a PNG's text, a PDF's creator, a comment), so that we know it again.
MARK = "made by vlprune"
#: Bytes at a file's beginning and at its end that are searched for the mark.
SEARCHED_BYTES = 1 << 18


class OutputError(ValueError):
    """The file cannot be written, or must not be; the message says why in one sentence."""


def check_output(path: str | Path, *, inputs: Iterable[str | Path] = (), force: bool = False) -> Path:
    """The path of an output file, if it may be written; raises `OutputError` if not, before any work is done for it.

    One of the `inputs` (files, or folders whose files are read) is never replaced; another file that is there is
    replaced if we made it, or with `force`.

    >>> check_output("nowhere/kept.png")
    Traceback (most recent call last):
    ...
    vlprune.media.outputs.OutputError: 'nowhere/kept.png': there is no folder 'nowhere'.
    """
    path = Path(path)
    name = repr(str(path))
    if not path.parent.is_dir():
        raise OutputError(f"{name}: there is no folder {str(path.parent)!r}.")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise OutputError(f"{name} cannot be written.")
    if not path.exists():
        return path
    if any(_is_input(path, Path(source)) for source in inputs):
        raise OutputError(f"{name} is read by this command, so it is not overwritten: choose another name.")
    if not force and not made_by_vlprune(path):
        raise OutputError(f"{name} is there already and was not made by vlprune: choose another name, or add --force.")
    return path


def _is_input(path: Path, source: Path) -> bool:
    """Whether `path`, which exists, is the file `source` or lies in the folder `source`."""
    if source.is_dir():
        return path.resolve().is_relative_to(source.resolve())
    return source.exists() and path.samefile(source)


def made_by_vlprune(path: Path) -> bool:
    """Whether a file carries the mark of vlprune, or is empty.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     (Path(folder) / "a.md").write_text("<!-- made by vlprune -->") and made_by_vlprune(Path(folder) / "a.md")
    True
    """
    try:
        with path.open("rb") as file:
            begin = file.read(SEARCHED_BYTES)
            file.seek(max(0, path.stat().st_size - SEARCHED_BYTES))
            end = file.read(SEARCHED_BYTES)
    except OSError:
        return False
    return not begin or MARK.encode() in begin or MARK.encode() in end


def picture_metadata(path: str | Path) -> dict[str, Any]:
    """The arguments of `Figure.savefig` with which a picture of this name carries the mark."""
    ending = Path(path).suffix.lower()
    if ending in (".jpg", ".jpeg"):
        return {"pil_kwargs": {"comment": MARK}}
    return {"metadata": {"Creator" if ending in (".pdf", ".svg") else "Software": MARK}}

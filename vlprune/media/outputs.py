"""Files that a command writes: never one that it reads, and none of another program unless told to."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
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
    written = [path] * path.exists() + [path.parent] * _is_replaced(path)
    if path.is_dir() or not all(os.access(place, os.W_OK) for place in written):
        raise OutputError(f"{name} cannot be written.")
    if not path.exists():
        return path
    if any(_is_input(path, Path(source)) for source in inputs):
        raise OutputError(f"{name} is read by this command, so it is not overwritten: choose another name.")
    if not force and not made_by_vlprune(path):
        raise OutputError(f"{name} is there already and was not made by vlprune: choose another name, or add --force.")
    return path


@contextmanager
def replace_when_done(path: str | Path) -> Iterator[Path]:
    """A neighbour of the file to write to within the `with`; at its end it takes the file's place.

    If anything fails before that, a full disk for one, the neighbour is removed and the file is what it was. The
    neighbour's name has the same ending, by which formats are known.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replace_when_done(Path(folder) / "a.md") as half:
    ...         written = half.write_text("all of it")
    ...     [path.name for path in Path(folder).iterdir()]
    ['a.md']
    """
    path = Path(path)
    if not _is_replaced(path):
        yield path
        return
    target = path.resolve()  # where a link points to, the link stays
    half = part_of(target)
    try:
        yield half
        os.replace(half, target)
    except BaseException as error:
        half.unlink(missing_ok=True)
        if isinstance(error, OSError):
            error.filename, error.filename2 = str(path), None
        raise


def part_of(path: Path) -> Path:
    """The neighbour in which a file is written until it is whole.

    >>> part_of(Path("runs/eval/result.json")).name
    '.result.part.json'
    """
    return path.with_name(f".{path.stem}.part{path.suffix}")


def write_text(path: str | Path, text: str) -> None:
    """Write a text file all at once: neither a reader nor a crash sees half of it."""
    with replace_when_done(path) as half:
        half.write_text(text, encoding="utf-8")


def _is_replaced(path: Path) -> bool:
    """Whether writing replaces the file; what is no file, such as /dev/null, is written to as it is."""
    return path.is_file() or not path.exists()


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
    """The arguments of `Figure.savefig` with which a picture of this name is written quickly, and carries the mark."""
    ending = Path(path).suffix.lower()
    if ending in (".jpg", ".jpeg"):
        return {"pil_kwargs": {"comment": MARK}}
    told: dict[str, Any] = {"metadata": {"Creator" if ending in (".pdf", ".svg") else "Software": MARK}}
    if ending == ".png":  # half the time of PIL's own choice, for a file a thirtieth larger
        told["pil_kwargs"] = {"compress_level": 4}
    return told

"""The files of a command: images and videos that it reads, pictures and others that it writes.

What is wrong with one of them is a `UserError`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from vlprune.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

    from vlprune.cli.terminal import Steps
    from vlprune.media.video import Clip

PICTURE_ENDINGS = (".png", ".pdf", ".svg", ".jpg")


def check_output_path(path: Path, *inputs: str | Path | None, force: bool) -> Path:
    """Refuse a file that cannot or must not be written, before any work is done for it."""
    from vlprune import pocket
    from vlprune.media.outputs import OutputError, check_output
    from vlprune.pocket.photo_folder import find_folder

    own = {"pocket": pocket.path(), "photo": find_folder()}  # what these names of models are read from
    read = [place for source in inputs for place in (source, own.get(str(source))) if place is not None]
    try:
        return check_output(path, inputs=read, force=force)
    except OutputError as error:
        raise UserError(str(error)) from error


def check_picture_path(path: Path, *inputs: str | Path | None, force: bool) -> Path:
    """The same for a picture, whose name must end in a format that can be drawn."""
    if path.suffix.lower() not in PICTURE_ENDINGS:
        raise UserError(f"{str(path)!r}: a picture's name must end in {', '.join(PICTURE_ENDINGS)}.")
    return check_output_path(path, *inputs, force=force)


def read_image(path: Path) -> Image.Image:
    """The image in a file, in RGB."""
    from vlprune.media.image import ImageError, open_image

    try:
        return open_image(path)
    except ImageError as error:
        raise UserError(str(error)) from error


def read_video(path: Path, frames: int, steps: Steps) -> Clip:
    """So many frames of a video; `steps` show how far its decoding has come."""
    from vlprune.media.image import ImageError
    from vlprune.media.video import read_clip

    steps.begin(f"decoding {path.name}")
    try:
        return read_clip(path, frames, tick=steps.reach)
    except ImageError as error:
        raise UserError(str(error)) from error


def write_text(path: Path, text: str) -> None:
    """Write a text to a file."""
    from vlprune.media import outputs

    try:
        outputs.write_text(path, text)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written ({error.strerror or error}).") from error


def write_picture(path: Path, image: Any, records: Any, **options: Any) -> None:
    """Draw what was kept: a list of records as strips, a dictionary of them by method as a contact sheet."""
    from vlprune.show import save_contact_sheet, save_picture

    try:
        (save_contact_sheet if isinstance(records, dict) else save_picture)(path, image, records, **options)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written ({error.strerror or error}).") from error

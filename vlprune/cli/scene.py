"""`vlprune scene`: draw a scene that the model which comes with vlprune can be asked about."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlprune.cli.files import check_output_path
from vlprune.cli.options import Force
from vlprune.errors import UserError

if TYPE_CHECKING:
    from PIL import Image


def scene(
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the scene goes: a PNG file.")] = Path("scene.png"),
    number: Annotated[int, typer.Option(min=0, help="Which scene of the test split to draw.")] = 0,
    force: Force = False,
) -> None:
    """Draw a scene to ask the pocket model about.

    It knows scenes of coloured shapes with digits on them, and nothing else. Prints what can be asked about this one,
    with the right answers.
    """
    if out.suffix.lower() != ".png":
        raise UserError(f"{str(out)!r}: a scene's name must end in .png.")
    target = check_output_path(out, force=force)
    from vlprune import pocket
    from vlprune.pocket.render import images

    (drawn,) = pocket.scenes("test", 1, start=number)
    _write_png(target, images([drawn])[0])
    questions = pocket.questions(drawn)
    print(f"wrote {target}: {len(drawn.things)} coloured shapes with digits on them. One can ask:")
    width = max(len(question.text) for question in questions)
    for question in questions:
        print(f"  {question.text:{width}}  ({question.answer})")
    # the question about what is there can always be asked, one about a colour says more
    first = next((question for question in questions if question.kind == "color"), questions[0])
    print(f"Try: vlprune ask {shlex.quote(str(target))} {shlex.quote(first.text)}")


def _write_png(path: Path, image: Image.Image) -> None:
    """Write an image with the mark of vlprune, so that it may be replaced later."""
    from PIL.PngImagePlugin import PngInfo

    from vlprune.media.outputs import MARK, replace_when_done

    mark = PngInfo()
    mark.add_text("Software", MARK)
    try:
        with replace_when_done(path) as half:
            image.save(half, pnginfo=mark)
    except OSError as error:
        raise UserError(f"{str(path)!r} cannot be written ({error.strerror or error}).") from error

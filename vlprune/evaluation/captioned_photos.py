"""Questions about photographs with captions, some with cards or a smaller photograph pasted on: Flickr8k's files.

What was pasted has a place that is known, so that one can ask what is answered from that place alone.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from vlprune.errors import UserError
from vlprune.evaluation.questions import ImageQuestion
from vlprune.pocket.photo_questions import SMALL_THINGS, Question, ThingCounts
from vlprune.pocket.photo_scenes import SIZE, Scene, cells, draw_scene

if TYPE_CHECKING:
    from PIL import Image

#: Folders of photographs that are looked for beside the captions, and one folder up.
PHOTO_FOLDERS = ("photos", "images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset")
_LISTS = {"validation": "dev", "test": "test"}
_SEED = 2  # of what is pasted and asked; training validates itself on draws of seed 1


@dataclass(frozen=True)
class PhotoQuestion(ImageQuestion):
    """A question about a photograph, its `path`, with or without something pasted on it as `drawn` says.

    `place` are the tokens, of 24 × 24, on what is asked about; () where nobody knows it. `small` says whether that is
    one of the things that are small as a rule: a ball, a hat.
    """

    drawn: Scene = field(default=Scene(""), repr=False)
    place: tuple[int, ...] = ()
    small: bool = False

    def shown(self) -> Image.Image:
        """The picture, 336 × 336 pixels."""
        from vlprune.media.image import ImageError, open_image

        assert self.path is not None
        folder, names = self.path.parent, {self.drawn.photo, self.drawn.inset or self.drawn.photo}
        try:
            return draw_scene(self.drawn, {name: open_image(folder / name) for name in names})
        except ImageError as error:
            raise UserError(str(error)) from error

    def image_size(self) -> tuple[int, int]:
        """(width, height), in which boxes are."""
        return SIZE, SIZE


def is_caption_list(path: Path) -> bool:
    """Whether this is a list of captions in Flickr8k's format: `name.jpg#0<tab>caption` on each line."""
    if not path.is_file() or path.suffix != ".txt":
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        name, tab, _ = file.readline().partition("\t")
    return bool(tab) and name.rpartition("#")[2].isdigit()


def photo_questions(captions: Path, split: str, per_kind: int) -> list[PhotoQuestion]:
    """Questions about photographs of "validation" or "test", as Flickr8k's lists beside the captions have them.

    `per_kind` pictures each are plain, with an inset, with one card and with three. Whether a thing is there is asked
    as often of things that are as of things that are not. Photographs of the training list are only counted, for
    which things are popular.
    """
    from vlprune.pocket.photo_data import read_splits, unseen_scenes

    try:
        splits = read_splits(captions)
    except FileNotFoundError as error:
        raise UserError(f"--data {captions}: there is no list {error.filename!r} of a split beside it.") from None
    facts = splits[_LISTS[split]]
    if len(facts) < 2:  # one is set into another
        raise UserError(
            f"--data {captions}: {len(facts)} photographs of the {split} split have captions; it takes two."
        )
    folder = _photo_folder(captions, sorted(facts))
    asked: list[PhotoQuestion] = []
    scenes = unseen_scenes(facts, ThingCounts(splits["train"].values()), per_kind, _SEED)
    for i, (scene, questions) in enumerate(scenes):
        asked += [_question(len(asked) + k, i, scene, one, folder) for k, one in enumerate(questions)]
    return asked


def _photo_folder(captions: Path, names: list[str]) -> Path:
    """The first folder that has the first photograph; every one must be there."""
    beside = captions.parent
    for folder in [place / name for place in (beside, beside / "..") for name in PHOTO_FOLDERS] + [beside]:
        if (folder / names[0]).is_file():
            missing = next((name for name in names if not (folder / name).is_file()), None)
            if missing is not None:
                raise UserError(f"--data {captions}: there is no photograph {missing!r} in {folder}.")
            return folder
    raise UserError(
        f"--data {captions}: there is no photograph {names[0]!r} beside it, nor in {', '.join(PHOTO_FOLDERS)}, "
        "there or one folder up."
    )


def _question(number: int, picture: int, scene: Scene, asked: Question, folder: Path) -> PhotoQuestion:
    """One of the questions about a picture."""
    kind = asked.kind
    if kind == "existence" and scene.inset is not None:
        kind = "inset" if asked.boxes else "beside inset"
    return PhotoQuestion(
        number,
        f"{picture} {scene.photo}",
        kind,
        asked.text,
        asked.accepted or (asked.answer,),
        path=folder / scene.photo,
        boxes=asked.boxes or None,
        drawn=scene,
        place=tuple(cells(asked.boxes)),
        small=asked.about in SMALL_THINGS,
    )

"""Photographs and what is on them: boxes of things (COCO or YOLO), panoptic masks, or the things of drawn scenes."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlprune.errors import UserError
from vlprune.evaluation.questions import IMAGE_SUFFIXES
from vlprune.media.image import ImageError, open_image
from vlprune.pocket.world import SIZE, Scene, scenes

if TYPE_CHECKING:
    from PIL import Image

#: Up to which share of the photograph a thing is called so; what is larger is "large".
SIZES = {"small": 0.01, "medium": 0.1, "large": 1.0}
#: The share of a patch that a thing covers for the patch's token to lie on it.
ON = 0.5


@dataclass(frozen=True)
class Region:
    """A thing, or a stretch of stuff such as sky, on a photograph.

    `box` is left, top, right and bottom, as shares of the photograph's sides. `segment` is the region's number in the
    photograph's panoptic mask; None where only the box is known.
    """

    name: str
    box: tuple[float, float, float, float]
    is_thing: bool = True
    segment: int | None = None


@dataclass(frozen=True)
class Photograph:
    """An image, as a file or a drawn scene, and the regions that are marked on it; `mask` is its panoptic mask."""

    name: str
    regions: tuple[Region, ...]
    path: Path | None = None
    mask: Path | None = None
    scene: Scene | None = field(default=None, repr=False)

    def image(self) -> Image.Image:
        """The image, opened or drawn."""
        if self.scene is not None:
            from vlprune.pocket.render import images

            return images([self.scene])[0]
        assert self.path is not None
        try:
            return open_image(self.path)
        except ImageError as error:
            raise UserError(str(error)) from error

    def cover(self, grid: tuple[int, int]) -> Tensor:
        """(regions, rows · columns) the share of each cell of a grid over the image that each region covers."""
        if not self.regions:
            return torch.zeros(0, grid[0] * grid[1])
        mask = None if self.mask is None else _read_mask(self.mask)
        return torch.stack(
            [
                cover_of_box(region.box, grid)
                if region.segment is None or mask is None
                else torch.nn.functional.adaptive_avg_pool2d((mask == region.segment).float()[None], grid).flatten()
                for region in self.regions
            ]
        )


def cover_of_box(box: tuple[float, float, float, float], grid: tuple[int, int]) -> Tensor:
    """(rows · columns) the share of each cell that a box covers.

    >>> cover_of_box((0.0, 0.0, 0.75, 0.5), (2, 2)).tolist()
    [1.0, 0.5, 0.0, 0.0]
    """

    def overlap(low: float, high: float, count: int) -> Tensor:
        edges = torch.linspace(0, 1, count + 1)
        return (edges[1:].clamp(max=high) - edges[:-1].clamp(min=low)).clamp(min=0) * count

    left, top, right, bottom = box
    return (overlap(top, bottom, grid[0])[:, None] * overlap(left, right, grid[1])).flatten()


def tokens_on(cover: Tensor) -> Tensor:
    """(regions, n) which tokens lie on which region: those whose patch it covers by half, or else by most.

    >>> tokens_on(torch.tensor([[0.9, 0.5, 0.1], [0.0, 0.2, 0.1]])).tolist()
    [[True, True, False], [False, True, False]]
    """
    most = torch.zeros_like(cover, dtype=torch.bool)
    if len(cover):
        most.scatter_(1, cover.argmax(1, keepdim=True), True)
    on = cover >= ON
    return torch.where(on.any(1, keepdim=True), on, most)


def size_of(share: float) -> str:
    """The name of a thing's size, from the share of the photograph that it covers.

    >>> size_of(0.005), size_of(0.05), size_of(0.5)
    ('small', 'medium', 'large')
    """
    return next((name for name, most in SIZES.items() if share <= most), "large")


def drawn_photographs(split: str, count: int) -> list[Photograph]:
    """Scenes of the pocket world, whose things are known by their shape.

    >>> drawn_photographs("test", 1)[0].regions[0].is_thing
    True
    """
    found = []
    for scene in scenes(split, count):
        boxes = [(t.shape, t.x - t.radius, t.y - t.radius, t.x + t.radius, t.y + t.radius) for t in scene.things]
        regions = [Region(name, (x0 / SIZE, y0 / SIZE, x1 / SIZE, y1 / SIZE)) for name, x0, y0, x1, y1 in boxes]
        found.append(Photograph(scene.name, tuple(regions), scene=scene))
    return found


def read_photographs(folder: Path) -> list[Photograph]:
    """The photographs in a folder, at any depth, with what the labels beside them say.

    Labels are COCO's JSON files of instances or of panoptic segments (with their PNG masks), and YOLO's text files,
    named like the photographs. Where a photograph has boxes and segments, things are taken from the boxes.
    """
    if not folder.is_dir():
        raise UserError(f"--data {folder}: pass a folder of photographs, with COCO's or YOLO's labels in it.")
    boxes, segments, masks = _read_json_labels(folder)
    names = _class_names(folder)
    known: dict[str, Photograph] = {}
    for path in sorted(folder.rglob("*")):
        if path.suffix.lower() not in IMAGE_SUFFIXES or path in set(masks.values()):
            continue
        if path.stem in known:
            raise UserError(f"--data {folder} has two photographs that are called {path.stem}.")
        known[path.stem] = Photograph(path.stem, (), path, masks.get(path.stem))
    for path in sorted(folder.rglob("*.txt")):
        if path.stem in known:
            if path.stem in boxes:
                raise UserError(f"--data {folder} has two files of boxes for {path.stem}: leave one kind of label.")
            boxes[path.stem] = list(_read_yolo(path, names))
    found = []
    for stem, one in known.items():
        things = boxes.get(stem)
        own = segments.get(stem, [])
        regions = own if things is None else things + [region for region in own if not region.is_thing]
        if things is not None or own:
            found.append(Photograph(stem, tuple(regions), one.path, one.mask))
    if not found:
        raise UserError(
            f"--data {folder} has no photographs with labels: COCO's instances or panoptic segments (JSON), or a text "
            "file in YOLO's format for each photograph, named like it."
        )
    return found


Labels = dict[str, list[Region]]


def _read_json_labels(folder: Path) -> tuple[Labels, Labels, dict[str, Path]]:
    """Boxes, panoptic segments and masks of COCO's JSON files, each by the photograph's name."""
    boxes: Labels = {}
    segments: Labels = {}
    masks: dict[str, Path] = {}
    for path in sorted(folder.rglob("*.json")):
        try:
            found: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"--data {folder}: {path.name} cannot be read ({error}).") from error
        rows = found.get("annotations") if isinstance(found, dict) else None
        if not rows or not isinstance(rows[0], dict):
            continue
        classes = {one["id"]: one for one in found.get("categories", [])}
        images = {one["id"]: one for one in found.get("images", [])}
        if "segments_info" in rows[0]:
            for row in rows:
                stem = Path(images[row["image_id"]]["file_name"]).stem
                segments[stem] = list(_read_segments(row, images[row["image_id"]], classes))
                masks[stem] = path.with_suffix("") / row["file_name"]
        elif "bbox" in rows[0]:
            for image in images.values():
                boxes.setdefault(Path(image["file_name"]).stem, [])
            for row in rows:
                if not row.get("iscrowd"):
                    image = images[row["image_id"]]
                    name = classes[row["category_id"]]["name"]
                    boxes[Path(image["file_name"]).stem].append(Region(name, _shares(row["bbox"], image)))
    return boxes, segments, masks


def _read_segments(row: Mapping[str, Any], image: Mapping[str, Any], classes: Mapping[int, Any]) -> Iterator[Region]:
    """The segments of one photograph's panoptic annotation, without crowds."""
    for one in row["segments_info"]:
        kind = classes[one["category_id"]]
        if not one.get("iscrowd"):
            yield Region(kind["name"], _shares(one["bbox"], image), bool(kind.get("isthing", 1)), one["id"])


def _shares(box: Any, image: Mapping[str, Any]) -> tuple[float, float, float, float]:
    """COCO's left, top, width and height in pixels as shares of the image's sides."""
    left, top, width, height = box
    wide, high = image["width"], image["height"]
    return left / wide, top / high, (left + width) / wide, (top + height) / high


def _read_yolo(path: Path, names: Mapping[int, str]) -> Iterator[Region]:
    """The boxes of a text file in YOLO's format: class, middle x and y, width and height, as shares."""
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        words = line.split()
        if not words:
            continue
        try:
            kind, x, y, width, height = int(words[0]), *map(float, words[1:])
        except ValueError:
            raise UserError(
                f"--data: {path}, line {number}: not a class number, and middle x, middle y, width and height."
            ) from None
        box = (x - width / 2, y - height / 2, x + width / 2, y + height / 2)
        yield Region(names.get(kind, f"class {kind}"), box)


def _class_names(folder: Path) -> dict[int, str]:
    """Names of YOLO's classes by number, from the `names` of a YAML file in the folder; empty where there is none."""
    import yaml  # type: ignore[import-untyped]

    for path in sorted([*folder.rglob("*.yaml"), *folder.rglob("*.yml")]):
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
        names = found.get("names") if isinstance(found, dict) else None
        if names:
            return {int(k): str(v) for k, v in (names.items() if isinstance(names, dict) else enumerate(names))}
    return {}


def _read_mask(path: Path) -> Tensor:
    """(height, width) the number of the segment at each pixel of a panoptic mask."""
    import numpy as np

    try:
        levels = np.asarray(open_image(path)).astype(np.int64)
    except ImageError as error:
        raise UserError(str(error)) from error
    return torch.from_numpy(levels @ np.array([1, 256, 256 * 256]))

"""LLaVA-NeXT and its kin: an image is a base view and tiles, stitched, unpadded, with a newline after each row.

How the tokens lie is learnt from the model's own packing: it is run on coordinates in place of features.
"""

import inspect
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlprune.devices import copy_to_device
from vlprune.models.base import Stream, register_family
from vlprune.models.llava import Llava, Projected
from vlprune.types import Part, Shape, stacked

NEWLINE = -1.0


@dataclass(frozen=True)
class Anyres:
    """The pixels of one image: (height, width), and how many views its tiles are."""

    size: tuple[int, int]
    views: int


def tiles(model: Any, inputs: dict[str, Any]) -> list[Anyres]:
    """The images of a call, from their sizes alone, as the model itself counts their views."""
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    if inputs.get("image_sizes") is None:
        raise ValueError("image_sizes must be passed with the images.")
    sizes = [(int(height), int(width)) for height, width in torch.as_tensor(inputs["image_sizes"]).tolist()]
    whole = inputs.get("batch_num_images")  # LLaVA-OneVision does not tile the images of a prompt with several
    several = [] if whole is None else [int(n) > 1 for n in whole for _ in range(int(n))]
    edge, pins = model.config.vision_config.image_size, model.config.image_grid_pinpoints
    return [
        Anyres(size, 1 if several and several[i] else image_size_to_num_patches(list(size), pins, edge))
        for i, size in enumerate(sizes)
    ]


def packed(model: Any, features: Tensor, image: Anyres, newline: Tensor) -> Tensor:
    """The views (views, n, c) of one image as the model lays them out in the prompt: (length, c)."""
    pack = model.base_model.pack_image_features
    if "vision_aspect_ratio" in inspect.signature(pack).parameters:  # LLaVA-OneVision
        options = {"vision_aspect_ratio": model.config.vision_aspect_ratio}
    else:
        options = {"vision_feature_select_strategy": "full"}
    return pack([features], torch.tensor([image.size]), image_newline=newline, **options)[0][0]


def image_shape(model: Any, image: Anyres) -> Shape:
    """How one image lies in the prompt."""
    vision, pins = model.config.vision_config, model.config.image_grid_pinpoints
    side = vision.image_size // vision.patch_size
    key = (image, side, vision.image_size, str(pins), getattr(model.config, "vision_aspect_ratio", None))
    if key not in _SHAPES:
        wide = 1
        if image.views > 1:
            from transformers.models.llava_next.modeling_llava_next import get_anyres_image_grid_shape

            _, wide = get_anyres_image_grid_shape(list(image.size), pins, vision.image_size)
        at = torch.arange(side, dtype=torch.float32)
        row, column = (grid.flatten() for grid in torch.meshgrid(at, at, indexing="ij"))
        views = [torch.stack([torch.zeros_like(row), row, column], dim=1)]
        for tile in range(image.views - 1):
            place = row + tile // wide * side, column + tile % wide * side
            views.append(torch.stack([torch.ones_like(row), *place], dim=1))
        coordinates = packed(model, torch.stack(views), image, torch.full((3,), NEWLINE))
        _SHAPES[key] = _shape(coordinates, side, image.views, wide)
    return _SHAPES[key]


_SHAPES: dict[Hashable, Shape] = {}


def _shape(coordinates: Tensor, side: int, views: int, wide: int) -> Shape:
    """The shape of packed `coordinates` (length, 3): 0 for the base view and 1 for tiles, row, column; or newlines."""
    newline = coordinates[:, 0] == NEWLINE
    candidates = (~newline).nonzero()[:, 0]
    lines = torch.full((len(coordinates),), -1)
    if views == 1:
        part = Part("base", (side, side), torch.arange(side * side))
        return Shape("image", len(lines), (part,), candidates, lines)
    rows = int(newline.sum())
    size, wall = side * side, (len(candidates) - side * side) // rows
    line = torch.arange(rows).repeat_interleave(wall)
    lines[newline] = torch.arange(rows)
    lines[candidates] = torch.cat([torch.full((size,), rows), line])
    # a token lies in the tile that its centre falls into (interpolated ones lie between the tiles' own)
    high, along = ((coordinates[candidates[size:], i] + 0.5) // side for i in (1, 2))
    tile = high.long() * wide + along.long()
    parts = [Part("base", (side, side), torch.arange(size))]
    for number in tile.unique().tolist():
        at = (tile == number).nonzero()[:, 0]
        height = len(line[at].unique())
        parts.append(Part("tile", (height, len(at) // height), at + size))
    return Shape("image", len(lines), tuple(parts), candidates, lines)


class Tiled(Projected):
    """Images in tiles; a subclass adds videos."""

    def shapes(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Shape]:
        return [image_shape(model, image) for image in tiles(model, inputs)]

    def arranged(
        self, model: Any, stream: Stream, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        images = tiles(model, inputs)
        newline = values.new_zeros(values.shape[2])
        views = values.split([image.views for image in images])
        lying = [packed(model, part, image, newline) for part, image in zip(views, images)]
        return [part[copy_to_device(shape.candidates, part.device)] for part, shape in zip(lying, shapes)]


class LlavaNext(Tiled):
    name = "llava_next"
    classes = ("LlavaNextForConditionalGeneration",)
    prunes = "the tokens of the base view and the tiles; a row's newline stays while a token of the row stays"
    relevance = "clip with dual_encoder=, else llm"
    tested = "tiny random weights against an independent reference; 7B-sized random weights on a GPU"
    vision_inputs = Llava.vision_inputs
    has_dual_encoder = True


class LlavaNextVideo(Tiled):
    name = "llava_next_video"
    classes = ("LlavaNextVideoForConditionalGeneration",)
    prunes = "images as llava_next; of a video, the pooled tokens of all frames"
    relevance = LlavaNext.relevance
    tested = "tiny random weights against an independent reference"
    vision_inputs = (*Llava.vision_inputs, "pixel_values_videos")
    has_dual_encoder = True

    def shapes(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Shape]:
        if stream.kind == "image":
            return super().shapes(model, stream, output, inputs, runs)
        videos, frames = video_pixels(inputs).shape[:2]
        vision = model.config.vision_config
        side = vision.image_size // vision.patch_size // model.config.spatial_pool_stride
        return [stacked("video", "frame", (side, side), frames)] * videos

    def arranged(
        self, model: Any, stream: Stream, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        if stream.kind == "image":
            return super().arranged(model, stream, values, inputs, shapes)
        pool = torch.nn.AvgPool2d(model.config.spatial_pool_stride)  # the model's own may be a convolution
        return list(on_grid(values, pool).reshape(len(shapes), shapes[0].n, -1))


def video_pixels(inputs: dict[str, Any]) -> Tensor:
    """The pixels (videos, frames, ...) that a video's encoder was called with."""
    pixels = inputs.get("pixel_values_videos", inputs.get("pixel_values"))
    if pixels is None:
        raise ValueError("videos that were encoded beforehand cannot be pruned: pass pixel_values_videos.")
    return pixels


def on_grid(values: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """(frames, n, c) on its square grid, changed as a picture (frames, c, rows, columns), and back in lines."""
    side = round(values.shape[1] ** 0.5)
    picture = values.mT.reshape(len(values), -1, side, side)
    return change(picture).flatten(2).mT


register_family(LlavaNext())
register_family(LlavaNextVideo())

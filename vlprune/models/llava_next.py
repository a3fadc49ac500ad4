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
from vlprune.models.base import Modality
from vlprune.models.llava import ClipLikeFamily, Llava
from vlprune.models.registry import register_family
from vlprune.types import GridPart, Shape, grid_shape

NEWLINE = -1.0


@dataclass(frozen=True)
class TiledImage:
    """One image: its (height, width) in pixels, and the number of its views (the base view and the tiles)."""

    size: tuple[int, int]
    views: int


def tiled_images(model: Any, inputs: dict[str, Any]) -> list[TiledImage]:
    """The images of a call; the number of views is computed by the model's own code from the image sizes."""
    from transformers.models.llava_next.modeling_llava_next import image_size_to_num_patches

    if inputs.get("image_sizes") is None:
        raise ValueError("image_sizes must be passed with the images.")
    sizes = [(int(height), int(width)) for height, width in torch.as_tensor(inputs["image_sizes"]).tolist()]
    whole = inputs.get("batch_num_images")  # LLaVA-OneVision does not tile the images of a prompt with several
    several = [] if whole is None else [int(n) > 1 for n in whole for _ in range(int(n))]
    edge, pins = model.config.vision_config.image_size, model.config.image_grid_pinpoints
    return [
        TiledImage(size, 1 if several and several[i] else image_size_to_num_patches(list(size), pins, edge))
        for i, size in enumerate(sizes)
    ]


def pack_views(model: Any, features: Tensor, image: TiledImage, newline: Tensor) -> Tensor:
    """The views (views, n, c) of one image in the order of the prompt (length, c), by the model's own code."""
    pack = model.base_model.pack_image_features
    if "vision_aspect_ratio" in inspect.signature(pack).parameters:  # LLaVA-OneVision
        options = {"vision_aspect_ratio": model.config.vision_aspect_ratio}
    else:
        options = {"vision_feature_select_strategy": "full"}
    return pack([features], torch.tensor([image.size]), image_newline=newline, **options)[0][0]


def image_shape(model: Any, image: TiledImage) -> Shape:
    """The shape of one image in the prompt."""
    vision, pins = model.config.vision_config, model.config.image_grid_pinpoints
    side = vision.image_size // vision.patch_size
    key = (image, side, vision.image_size, str(pins), getattr(model.config, "vision_aspect_ratio", None))
    shape = _SHAPES.get(key)
    if shape is None:
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
        coordinates = pack_views(model, torch.stack(views), image, torch.full((3,), NEWLINE))
        if len(_SHAPES) >= MAX_SHAPES:  # of images of ever new sizes
            _SHAPES.clear()
        shape = _SHAPES[key] = _shape_of_coordinates(coordinates, side, image.views, wide)
    return shape


_SHAPES: dict[Hashable, Shape] = {}
#: How many are kept: each has index tensors as long as the image's tokens, and a server sees images of any size.
MAX_SHAPES = 256


def _shape_of_coordinates(coordinates: Tensor, side: int, views: int, wide: int) -> Shape:
    """The shape that packed coordinates (length, 3) tell: 0 for the base view or 1 for tiles, row and column.

    A newline has NEWLINE in all three places.
    """
    newline = coordinates[:, 0] == NEWLINE
    candidates = (~newline).nonzero()[:, 0]
    lines = torch.full((len(coordinates),), -1)
    if views == 1:
        part = GridPart("base", (side, side), torch.arange(side * side))
        return Shape("image", len(lines), (part,), candidates, lines)
    rows = int(newline.sum())
    size, wall = side * side, (len(candidates) - side * side) // rows
    line = torch.arange(rows).repeat_interleave(wall)
    lines[newline] = torch.arange(rows)
    lines[candidates] = torch.cat([torch.full((size,), rows), line])
    # a token lies in the tile that its centre falls into (interpolated ones lie between the tiles' own)
    high, along = ((coordinates[candidates[size:], i] + 0.5) // side for i in (1, 2))
    tile = high.long() * wide + along.long()
    parts = [GridPart("base", (side, side), torch.arange(size))]
    for number in tile.unique().tolist():
        at = (tile == number).nonzero()[:, 0]
        height = len(line[at].unique())
        parts.append(GridPart("tile", (height, len(at) // height), at + size))
    return Shape("image", len(lines), tuple(parts), candidates, lines)


class TiledFamily(ClipLikeFamily):
    """Models that cut images into tiles; a subclass adds videos."""

    def image_shapes(
        self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any], run_lengths: list[int]
    ) -> list[Shape]:
        return [image_shape(model, image) for image in tiled_images(model, inputs)]

    def arrange_patches(
        self, model: Any, modality: Modality, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        images = tiled_images(model, inputs)
        newline = values.new_zeros(values.shape[2])
        views = values.split([image.views for image in images])
        packed = [pack_views(model, part, image, newline) for part, image in zip(views, images)]
        return [part[copy_to_device(shape.candidates, part.device)] for part, shape in zip(packed, shapes)]


@register_family
class LlavaNext(TiledFamily):
    name = "llava_next"
    classes = ("LlavaNextForConditionalGeneration",)
    prunes = "the tokens of the base view and the tiles; a row's newline stays while a token of the row stays"
    relevance = "clip with dual_encoder=, else llm"
    tested = "tiny random weights against an independent reference; 7B-sized random weights on a GPU"
    vision_inputs = Llava.vision_inputs
    has_dual_encoder = True


@register_family
class LlavaNextVideo(TiledFamily):
    name = "llava_next_video"
    classes = ("LlavaNextVideoForConditionalGeneration",)
    prunes = "images as llava_next; of a video, the pooled tokens of all frames"
    relevance = LlavaNext.relevance
    tested = "tiny random weights against an independent reference"
    vision_inputs = (*Llava.vision_inputs, "pixel_values_videos")
    has_dual_encoder = True

    def image_shapes(
        self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any], run_lengths: list[int]
    ) -> list[Shape]:
        if modality.kind == "image":
            return super().image_shapes(model, modality, output, inputs, run_lengths)
        videos, frames = video_pixels(inputs).shape[:2]
        vision = model.config.vision_config
        side = vision.image_size // vision.patch_size // model.config.spatial_pool_stride
        return [grid_shape("video", "frame", (side, side), frames)] * videos

    def arrange_patches(
        self, model: Any, modality: Modality, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        if modality.kind == "image":
            return super().arrange_patches(model, modality, values, inputs, shapes)
        pool = torch.nn.AvgPool2d(model.config.spatial_pool_stride)  # the model's own may be a convolution
        return list(resize_frames(values, pool).reshape(len(shapes), shapes[0].n, -1))


def video_pixels(inputs: dict[str, Any]) -> Tensor:
    """The pixels (videos, frames, ...) that a video's encoder was called with."""
    pixels = inputs.get("pixel_values_videos", inputs.get("pixel_values"))
    if pixels is None:
        raise ValueError("videos that were encoded beforehand cannot be pruned: pass pixel_values_videos.")
    return pixels


def resize_frames(values: Tensor, resize: Callable[[Tensor], Tensor]) -> Tensor:
    """Frames (frames, n, c) with another n: `resize` works on them as pictures (frames, c, rows, columns)."""
    side = round(values.shape[1] ** 0.5)
    picture = values.mT.reshape(len(values), -1, side, side)
    return resize(picture).flatten(2).mT

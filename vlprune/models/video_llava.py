"""Video-LLaVA: two towers, one square of tokens per image, and a class token in front of each frame of a video."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vlprune.models.base import Modality
from vlprune.models.llava import ClipLikeFamily, Llava
from vlprune.models.llava_next import video_pixels
from vlprune.models.registry import register_family
from vlprune.types import GridPart, Shape, square_shape


@lru_cache(maxsize=64)
def video_shape(side: int, frames: int) -> Shape:
    """The shape of `frames` squares, each after its class token, which stays while a token of its frame stays.

    >>> shape = video_shape(side=2, frames=3)
    >>> shape.length, shape.n, shape.candidates[:5].tolist()
    (15, 12, [1, 2, 3, 4, 6])
    """
    size = side * side
    tokens = torch.arange(frames * size).view(frames, size)
    lines = torch.arange(frames).repeat_interleave(size + 1)
    candidates = (tokens + 1 + torch.arange(frames)[:, None]).flatten()
    parts = tuple(GridPart("frame", (side, side), frame) for frame in tokens)
    return Shape("video", len(lines), parts, candidates, lines)


@register_family
class VideoLlava(ClipLikeFamily):
    name = "video_llava"
    classes = ("VideoLlavaForConditionalGeneration",)
    prunes = "the patch tokens of an image or of all frames; a frame's class token stays while a token of it stays"
    relevance = "llm"
    tested = "tiny random weights against an independent reference"
    vision_inputs = (*Llava.vision_inputs, "pixel_values_images", "pixel_values_videos")

    def modalities(self, model: Any) -> list[Modality]:
        image, video = super().modalities(model)
        return [Modality(image.kind, ("pixel_values", "pixel_values_images"), image.encoder, image.placeholder), video]

    def image_shapes(
        self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any], run_lengths: list[int]
    ) -> list[Shape]:
        if modality.kind == "image":
            return [square_shape("image", "image", len(image)) for image in output.pooler_output]
        pixels = video_pixels(inputs)
        vision = model.config.vision_config
        return [video_shape(vision.image_size // vision.patch_size, pixels.shape[1])] * len(pixels)

    def vision_tower(self, model: Any, modality: Modality) -> Any:
        return model.base_model.image_tower if modality.kind == "image" else model.base_model.video_tower

    def arrange_patches(
        self, model: Any, modality: Modality, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        return list(values.reshape(len(shapes), shapes[0].n, -1))

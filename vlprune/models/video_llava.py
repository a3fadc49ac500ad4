"""Video-LLaVA: two towers, one square of tokens per image, and a class token in front of each frame of a video."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vlprune.models.base import Stream, register_family
from vlprune.models.llava import Llava, Projected
from vlprune.models.llava_next import video_pixels
from vlprune.types import Part, Shape, squares


@lru_cache(maxsize=64)
def video_shape(side: int, frames: int) -> Shape:
    """`frames` squares, each after its class token, which stays while a token of its frame stays.

    >>> shape = video_shape(side=2, frames=3)
    >>> shape.length, shape.n, shape.candidates[:5].tolist()
    (15, 12, [1, 2, 3, 4, 6])
    """
    size = side * side
    tokens = torch.arange(frames * size).view(frames, size)
    lines = torch.arange(frames).repeat_interleave(size + 1)
    candidates = (tokens + 1 + torch.arange(frames)[:, None]).flatten()
    parts = tuple(Part("frame", (side, side), frame) for frame in tokens)
    return Shape("video", len(lines), parts, candidates, lines)


class VideoLlava(Projected):
    name = "video_llava"
    classes = ("VideoLlavaForConditionalGeneration",)
    prunes = "the patch tokens of an image or of all frames; a frame's class token stays while a token of it stays"
    relevance = "llm"
    tested = "tiny random weights against an independent reference"
    vision_inputs = (*Llava.vision_inputs, "pixel_values_images", "pixel_values_videos")

    def streams(self, model: Any) -> list[Stream]:
        image, video = super().streams(model)
        return [Stream(image.kind, ("pixel_values", "pixel_values_images"), image.encoder, image.placeholder), video]

    def shapes(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Shape]:
        if stream.kind == "image":
            return [squares("image", "image", len(image)) for image in output.pooler_output]
        pixels = video_pixels(inputs)
        vision = model.config.vision_config
        return [video_shape(vision.image_size // vision.patch_size, pixels.shape[1])] * len(pixels)

    def tower(self, model: Any, stream: Stream) -> Any:
        return model.base_model.image_tower if stream.kind == "image" else model.base_model.video_tower

    def arranged(
        self, model: Any, stream: Stream, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        return list(values.reshape(len(shapes), shapes[0].n, -1))


register_family(VideoLlava())

"""Video-LLaVA: two towers, one square of tokens per image, and a class token in front of each frame of a video."""

from functools import lru_cache
from typing import Any

import torch

from vlprune.models.base import Family, Stream, Vision, register_family
from vlprune.models.llava import Llava, tower_states
from vlprune.models.shape import Part, Shape, squares


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


class VideoLlava(Family):
    name = "video_llava"
    classes = ("VideoLlavaForConditionalGeneration",)
    prunes = "the patch tokens of an image or of all frames; a frame's class token stays while a token of it stays"
    relevance = "llm"
    tested = "tiny random weights against an independent reference"
    vision_inputs = (*Llava.vision_inputs, "pixel_values_images", "pixel_values_videos")

    def streams(self, model: Any) -> list[Stream]:
        image, video = super().streams(model)
        return [Stream(image.kind, ("pixel_values", "pixel_values_images"), image.encoder, image.placeholder), video]

    def read(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Vision]:
        if stream.kind == "image":
            tower = tower_states(model, output, inputs)
            states = [None] * len(output.pooler_output) if tower is None else list(tower)
            shapes = [squares("image", "image", len(image)) for image in output.pooler_output]
            return [Vision(shape, state) for shape, state in zip(shapes, states)]
        pixels = inputs.get("pixel_values_videos")
        if pixels is None:
            raise ValueError("videos that were encoded beforehand cannot be pruned: pass pixel_values_videos.")
        vision = model.config.vision_config
        return [Vision(video_shape(vision.image_size // vision.patch_size, pixels.shape[1]))] * len(pixels)


register_family(VideoLlava())

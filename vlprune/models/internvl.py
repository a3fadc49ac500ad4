"""InternVL3: an image is tiles and a thumbnail of 256 tokens each; frames of a video come as images of their own."""

from functools import lru_cache
from typing import Any

import torch

from vlprune.models.base import Family, Stream, Vision, register_family
from vlprune.models.shape import Part, Shape, squares


@lru_cache(maxsize=64)
def tiled(size: int, count: int) -> Shape:
    """`count` squares of `size` tokens, the last a thumbnail if there are several.

    >>> [part.name for part in tiled(4, 3).parts]
    ['tile', 'tile', 'thumbnail']
    """
    if count == 1:
        return squares("image", "image", size)
    shape = squares("image", "tile", size, count)
    last = Part("thumbnail", shape.parts[-1].grid, shape.parts[-1].tokens)
    return Shape("image", shape.length, (*shape.parts[:-1], last), torch.arange(shape.length))


class InternVL(Family):
    name = "internvl"
    classes = ("InternVLForConditionalGeneration",)
    prunes = "the tokens of the tiles and the thumbnail, per image; each frame of a video is an image"
    relevance = "llm"
    tested = "tiny random weights against an independent reference; 8B-sized random weights on a GPU"
    vision_inputs = ("pixel_values", "mm_encoder_outputs", "vision_feature_layer", "vision_feature_select_strategy")

    def read(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Vision]:
        tiles, size = output.pooler_output.shape[:2]
        if any(run % size for run in runs) or sum(runs) != tiles * size:
            raise ValueError(f"input_ids: runs of {runs} image placeholders do not make up tiles of {size} tokens.")
        return [Vision(tiled(size, run // size)) for run in runs]


register_family(InternVL())

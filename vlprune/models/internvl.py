"""InternVL3: an image is tiles and a thumbnail of 256 tokens each; frames of a video come as images of their own."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vlprune.models.base import Family, Stream, register_family
from vlprune.models.llava import drops_class, feature_layer
from vlprune.models.tower_attention import RecordedCall, TowerAttention, project_and_attend
from vlprune.types import Part, Shape, squares


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

    def shapes(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Shape]:
        tiles, size = output.pooler_output.shape[:2]
        if any(run % size for run in runs) or sum(runs) != tiles * size:
            raise ValueError(f"input_ids: runs of {runs} image placeholders do not make up tiles of {size} tokens.")
        return [tiled(size, run // size) for run in runs]

    def states(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any]) -> Tensor | None:
        layer = feature_layer(model, inputs)
        states = output.last_hidden_state if layer == -1 else output.hidden_states[layer]
        return None if states is None else states[:, 1:] if drops_class(model, inputs) else states

    def arranged(
        self, model: Any, stream: Stream, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        side = round(values.shape[1] ** 0.5)
        shuffled = model.base_model.pixel_shuffle(
            values.reshape(len(values), side, side, -1), scale_factor=model.config.downsample_ratio
        )
        return list(shuffled.flatten(1, 2).flatten(0, 1).split([shape.n for shape in shapes]))

    def attention_module(self, model: Any, stream: Stream, inputs: dict[str, Any]) -> Any:
        layer = feature_layer(model, inputs)
        return model.base_model.vision_tower.encoder.layer[layer if layer < 0 else layer - 1].attention

    def tower_attention(
        self, model: Any, stream: Stream, call: RecordedCall, output: Any, inputs: dict[str, Any]
    ) -> TowerAttention:
        # four patches make a token, and there is one class token: it has no token of its own to become
        seen = project_and_attend(self.attention_module(model, stream, inputs), call.hidden, call.hidden[:, 0])
        return TowerAttention(seen.attention, seen.keys)


register_family(InternVL())

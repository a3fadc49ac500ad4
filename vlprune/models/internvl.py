"""InternVL3: an image is tiles and a thumbnail of 256 tokens each; frames of a video come as images of their own."""

from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vlprune.models.base import Family, Modality
from vlprune.models.llava import drops_class_token, feature_layer
from vlprune.models.registry import register_family
from vlprune.models.tower_attention import RecordedCall, TowerAttention, attention_of_module
from vlprune.types import GridPart, Shape, square_shape


@lru_cache(maxsize=64)
def tiled_shape(size: int, count: int) -> Shape:
    """The shape of `count` squares of `size` tokens, the last of which is a thumbnail if there are several.

    >>> [part.name for part in tiled_shape(4, 3).parts]
    ['tile', 'tile', 'thumbnail']
    """
    if count == 1:
        return square_shape("image", "image", size)
    shape = square_shape("image", "tile", size, count)
    last = GridPart("thumbnail", shape.parts[-1].grid, shape.parts[-1].tokens)
    return Shape("image", shape.length, (*shape.parts[:-1], last), torch.arange(shape.length))


@register_family
class InternVL(Family):
    name = "internvl"
    classes = ("InternVLForConditionalGeneration",)
    prunes = "the tokens of the tiles and the thumbnail, per image; each frame of a video is an image"
    relevance = "llm"
    tested = "tiny random weights against an independent reference; 8B-sized random weights on a GPU"
    vision_inputs = ("pixel_values", "mm_encoder_outputs", "vision_feature_layer", "vision_feature_select_strategy")

    def image_shapes(
        self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any], run_lengths: list[int]
    ) -> list[Shape]:
        tiles, size = output.pooler_output.shape[:2]
        if any(run % size for run in run_lengths) or sum(run_lengths) != tiles * size:
            raise ValueError(
                f"input_ids: runs of {run_lengths} image placeholders do not make up tiles of {size} tokens."
            )
        return [tiled_shape(size, run // size) for run in run_lengths]

    def tower_states(self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any]) -> Tensor | None:
        layer = feature_layer(model, inputs)
        states = output.last_hidden_state if layer == -1 else output.hidden_states[layer]
        return None if states is None else states[:, 1:] if drops_class_token(model, inputs) else states

    def arrange_patches(
        self, model: Any, modality: Modality, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        side = round(values.shape[1] ** 0.5)
        shuffled = model.base_model.pixel_shuffle(
            values.reshape(len(values), side, side, -1), scale_factor=model.config.downsample_ratio
        )
        return list(shuffled.flatten(1, 2).flatten(0, 1).split([shape.n for shape in shapes]))

    def attention_module(self, model: Any, modality: Modality, inputs: dict[str, Any]) -> Any:
        layer = feature_layer(model, inputs)
        return model.base_model.vision_tower.encoder.layer[layer if layer < 0 else layer - 1].attention

    def tower_attention(
        self, model: Any, modality: Modality, call: RecordedCall, output: Any, inputs: dict[str, Any]
    ) -> TowerAttention:
        module, states = self.attention_module(model, modality, inputs), call.hidden_states
        # four patches make a token, and there is one class token: no token can be made of it
        return attention_of_module(module, states, leading=1)

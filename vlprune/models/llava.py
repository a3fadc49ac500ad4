"""LLaVA-1.5: a vision tower (CLIP's, as published), a two-layer projector, one grid of tokens per image."""

from functools import lru_cache
from math import isqrt
from typing import Any

import torch
from torch import Tensor

from vlprune.errors import UnsupportedModel
from vlprune.models.base import Family, Modality
from vlprune.models.registry import register_family
from vlprune.models.tower_attention import RecordedCall, TowerAttention, attention_modules, attention_of_module
from vlprune.types import GridPart, Shape, grid_shape, square_shape

#: Class, distillation and register tokens that a tower may put before its patches.
MAX_LEADING = 16


def feature_layers(model: Any, inputs: dict[str, Any]) -> list[int]:
    """The layers whose hidden states the model reads; the embeddings are number 0."""
    layer = inputs.get("vision_feature_layer")
    layer = model.config.vision_feature_layer if layer is None else layer
    return [layer] if isinstance(layer, int) else list(layer)


def feature_layer(model: Any, inputs: dict[str, Any]) -> int:
    """The last layer whose hidden states the model reads."""
    return feature_layers(model, inputs)[-1]


def projected_states(model: Any, output: Any, inputs: dict[str, Any]) -> Tensor:
    """(N, L, d_v) the tower's hidden states that the projector reads; those of several layers side by side."""
    return torch.cat([output.hidden_states[layer] for layer in feature_layers(model, inputs)], dim=-1)


def drops_class_token(model: Any, inputs: dict[str, Any]) -> bool:
    """Whether the model leaves out the tower's class token."""
    strategy = inputs.get("vision_feature_select_strategy")
    return (model.config.vision_feature_select_strategy if strategy is None else strategy) == "default"


@lru_cache(maxsize=64)
def leading_shape(grid: tuple[int, int], leading: int) -> Shape:
    """The shape of one grid of tokens behind `leading` others, which are structure and always stay.

    >>> shape = leading_shape((2, 3), leading=4)
    >>> shape.length, shape.n, shape.candidates[0].item(), shape.lines.tolist()
    (10, 6, 4, [-1, -1, -1, -1, 0, 0, 0, 0, 0, 0])
    """
    if not leading:
        return grid_shape("image", "image", grid)
    n = grid[0] * grid[1]
    lines = torch.cat([torch.full((leading,), -1), torch.zeros(n, dtype=torch.int64)])
    return Shape("image", leading + n, (GridPart("image", grid, torch.arange(n)),), torch.arange(n) + leading, lines)


def patch_grids(model: Any, inputs: dict[str, Any]) -> list[tuple[int, int]] | None:
    """Rows and columns of the patches of each image; None where images were encoded beforehand."""
    pixels, sizes = inputs.get("pixel_values"), inputs.get("image_sizes")
    if pixels is None or pixels.ndim != 4:
        return None
    patch = model.config.vision_config.patch_size
    high, wide = (patch, patch) if isinstance(patch, int) else patch
    shapes = [pixels.shape[2:]] * len(pixels) if sizes is None else torch.as_tensor(sizes).tolist()
    return [(int(height) // high, int(width) // wide) for height, width in shapes]


class ClipLikeFamily(Family):
    """Models with a vision transformer whose hidden states, of one layer or several, are projected to tokens."""

    def leading_tokens(self, model: Any, states: Tensor, inputs: dict[str, Any]) -> int:
        """How many of the tower's tokens (N, L, d_v) come before the patches."""
        return int(drops_class_token(model, inputs))

    def tower_states(self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any]) -> Tensor | None:
        if output.hidden_states is None:
            return None
        states = projected_states(model, output, inputs)
        return states[:, self.leading_tokens(model, states, inputs) :]

    def vision_tower(self, model: Any, modality: Modality) -> Any:
        """The vision tower that encodes this modality."""
        return model.base_model.vision_tower

    def attention_module(self, model: Any, modality: Modality, inputs: dict[str, Any]) -> Any:
        modules = attention_modules(self.vision_tower(model, modality))
        layer = feature_layer(model, inputs)  # as hidden states are counted: the embeddings are number 0
        return modules[layer if layer < 0 else layer - 1] if modules else None

    def tower_attention(
        self, model: Any, modality: Modality, call: RecordedCall, output: Any, inputs: dict[str, Any]
    ) -> TowerAttention:
        states = projected_states(model, output, inputs)
        leading = self.leading_tokens(model, states, inputs)
        cls = states[:, 0] if leading and drops_class_token(model, inputs) else None
        return attention_of_module(self.attention_module(model, modality, inputs), call.hidden_states, leading, cls)


@register_family
class Llava(ClipLikeFamily):
    name = "llava"
    classes = ("LlavaForConditionalGeneration",)
    prunes = "the patch tokens after the projector, per image; class and register tokens stay where the LLM sees them"
    relevance = "clip with dual_encoder=, else llm"
    tested = (
        "tiny random weights against an independent reference, with towers of CLIP, SigLIP, ViT, DINOv2 (with and "
        "without registers) and Pixtral; 7B-sized random weights on a GPU; the pocket model"
    )
    vision_inputs = (
        "pixel_values",
        "image_sizes",
        "mm_encoder_outputs",
        "vision_feature_layer",
        "vision_feature_select_strategy",
    )
    variable_length = False
    has_dual_encoder = True

    def check(self, model: Any) -> None:
        if not hasattr(model.config.vision_config, "patch_size"):
            raise UnsupportedModel(
                f"model is a {type(model).__name__} with a {model.config.vision_config.model_type!r} tower, whose "
                "config has no patch_size: vlprune cannot tell how its tokens lie."
            )

    def image_shapes(
        self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any], run_lengths: list[int]
    ) -> list[Shape]:
        grids = patch_grids(model, inputs)
        if grids is not None:
            return [_shape_of_image(model, grid, len(image)) for grid, image in zip(grids, output.pooler_output)]
        return [_shape_without_pixels(len(image)) for image in output.pooler_output]

    def leading_tokens(self, model: Any, states: Tensor, inputs: dict[str, Any]) -> int:
        grids = patch_grids(model, inputs)
        if grids is None:
            return super().leading_tokens(model, states, inputs)
        # where images have sizes of their own, the tower sees them in one row
        patches = [rows * columns for rows, columns in grids]
        return states.shape[1] - (patches[0] if inputs.get("image_sizes") is None else sum(patches))

    def arrange_patches(
        self, model: Any, modality: Modality, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        if inputs.get("image_sizes") is None:
            return list(values)
        return list(values[0].split([shape.n for shape in shapes]))

    def encodes_independently(self, modality: Modality, inputs: dict[str, Any]) -> bool:
        pixels = inputs.get("pixel_values")
        return inputs.get("image_sizes") is None and pixels is not None and pixels.ndim == 4


def _shape_of_image(model: Any, grid: tuple[int, int], length: int) -> Shape:
    """The shape of an image whose patches lie on a grid and that has `length` tokens in the prompt."""
    leading = length - grid[0] * grid[1]
    if not 0 <= leading <= MAX_LEADING:
        hint = " ('default' drops a patch where there is no class token)" if leading == -1 else ""
        raise UnsupportedModel(
            f"model is a {type(model).__name__} with a {model.config.vision_config.model_type!r} tower: the {length} "
            f"tokens of an image are not its {grid[0]} x {grid[1]} patches behind at most {MAX_LEADING} others, so "
            f"vlprune cannot tell how they lie{hint}."
        )
    return leading_shape(grid, leading)


def _shape_without_pixels(length: int) -> Shape:
    """The shape of an image that was encoded beforehand: a square behind a few others, or else a line."""
    side = isqrt(length)
    if length - side * side <= MAX_LEADING:
        return leading_shape((side, side), length - side * side)
    return square_shape("image", "image", length)

"""LLaVA-1.5: a CLIP (or SigLIP) tower, a two-layer projector, one fixed square of tokens per image."""

from typing import Any

from torch import Tensor

from vlprune.errors import UnsupportedModel
from vlprune.models.base import Family, Modality
from vlprune.models.registry import register_family
from vlprune.models.tower_attention import RecordedCall, TowerAttention, attention_of_module
from vlprune.types import Shape, square_shape

TOWERS = ("clip_vision_model", "siglip_vision_model")


def feature_layer(model: Any, inputs: dict[str, Any]) -> int:
    """The layer whose hidden states the model reads (the last, of several); the embeddings are number 0."""
    layer = inputs.get("vision_feature_layer")
    layer = model.config.vision_feature_layer if layer is None else layer
    return layer if isinstance(layer, int) else layer[-1]


def drops_class_token(model: Any, inputs: dict[str, Any]) -> bool:
    """Whether the model leaves out the tower's class token."""
    strategy = inputs.get("vision_feature_select_strategy")
    return (model.config.vision_feature_select_strategy if strategy is None else strategy) == "default"


class ClipLikeFamily(Family):
    """Models with a tower like CLIP's, whose hidden states of one layer are projected to tokens."""

    def tower_states(self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any]) -> Tensor | None:
        if output.hidden_states is None:
            return None
        states = output.hidden_states[feature_layer(model, inputs)]
        return states[:, 1:] if drops_class_token(model, inputs) else states

    def vision_tower(self, model: Any, modality: Modality) -> Any:
        """The vision tower that encodes this modality."""
        return model.base_model.vision_tower

    def attention_module(self, model: Any, modality: Modality, inputs: dict[str, Any]) -> Any:
        layer = feature_layer(model, inputs)  # as hidden states are counted: the embeddings are number 0
        return self.vision_tower(model, modality).encoder.layers[layer if layer < 0 else layer - 1].self_attn

    def tower_attention(
        self, model: Any, modality: Modality, call: RecordedCall, output: Any, inputs: dict[str, Any]
    ) -> TowerAttention:
        cls = output.hidden_states[feature_layer(model, inputs)][:, 0] if drops_class_token(model, inputs) else None
        return attention_of_module(self.attention_module(model, modality, inputs), call.hidden_states, cls)


@register_family
class Llava(ClipLikeFamily):
    name = "llava"
    classes = ("LlavaForConditionalGeneration",)
    prunes = "the image tokens after the projector, per image"
    relevance = "clip with dual_encoder=, else llm"
    tested = "tiny random weights against an independent reference; 7B-sized random weights on a GPU; the pocket model"
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
        tower = model.config.vision_config.model_type
        if tower not in TOWERS:
            raise UnsupportedModel(
                f"model is a {type(model).__name__} with a {tower!r} tower; "
                f"family {self.name!r} supports {' and '.join(TOWERS)}."
            )

    def image_shapes(
        self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any], run_lengths: list[int]
    ) -> list[Shape]:
        return [square_shape("image", "image", len(image)) for image in output.pooler_output]

    def encodes_independently(self, modality: Modality, inputs: dict[str, Any]) -> bool:
        pixels = inputs.get("pixel_values")
        return inputs.get("image_sizes") is None and pixels is not None and pixels.ndim == 4

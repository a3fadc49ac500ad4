"""LLaVA-1.5: a CLIP (or SigLIP) tower, a two-layer projector, one fixed square of tokens per image."""

from typing import Any

from torch import Tensor

from vlprune.errors import UnsupportedModel
from vlprune.models.base import Family, Stream, register_family
from vlprune.models.tower_attention import RecordedCall, TowerAttention, project_and_attend
from vlprune.types import Shape, squares

TOWERS = ("clip_vision_model", "siglip_vision_model")


def feature_layer(model: Any, inputs: dict[str, Any]) -> int:
    """The layer whose output the model reads (the last, of several), as it counts hidden states."""
    layer = inputs.get("vision_feature_layer")
    layer = model.config.vision_feature_layer if layer is None else layer
    return layer if isinstance(layer, int) else layer[-1]


def drops_class(model: Any, inputs: dict[str, Any]) -> bool:
    """Whether the model leaves the tower's class token out."""
    strategy = inputs.get("vision_feature_select_strategy")
    return (model.config.vision_feature_select_strategy if strategy is None else strategy) == "default"


class Projected(Family):
    """A tower of the CLIP kind whose hidden states of one layer are projected to tokens."""

    def states(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any]) -> Tensor | None:
        if output.hidden_states is None:
            return None
        states = output.hidden_states[feature_layer(model, inputs)]
        return states[:, 1:] if drops_class(model, inputs) else states

    def tower(self, model: Any, stream: Stream) -> Any:
        """The vision tower that sees the stream."""
        return model.base_model.vision_tower

    def attention_module(self, model: Any, stream: Stream, inputs: dict[str, Any]) -> Any:
        layer = feature_layer(model, inputs)  # as hidden states are counted: the embeddings are number 0
        return self.tower(model, stream).encoder.layers[layer if layer < 0 else layer - 1].self_attn

    def tower_attention(
        self, model: Any, stream: Stream, call: RecordedCall, output: Any, inputs: dict[str, Any]
    ) -> TowerAttention:
        cls = output.hidden_states[feature_layer(model, inputs)][:, 0] if drops_class(model, inputs) else None
        return project_and_attend(self.attention_module(model, stream, inputs), call.hidden, cls)


class Llava(Projected):
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

    def shapes(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Shape]:
        return [squares("image", "image", len(image)) for image in output.pooler_output]

    def encodes_independently(self, stream: Stream, inputs: dict[str, Any]) -> bool:
        pixels = inputs.get("pixel_values")
        return inputs.get("image_sizes") is None and pixels is not None and pixels.ndim == 4


register_family(Llava())

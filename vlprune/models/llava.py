"""LLaVA-1.5: a CLIP (or SigLIP) tower, a two-layer projector, one fixed square of tokens per image."""

from typing import Any

from torch import Tensor

from vlprune.errors import UnsupportedModel
from vlprune.models.base import Family, Stream, Vision, register_family
from vlprune.models.shape import squares

TOWERS = ("clip_vision_model", "siglip_vision_model")


def tower_states(model: Any, output: Any, inputs: dict[str, Any]) -> Tensor | None:
    """The hidden states (images, n, d_v) that the model projects, of what its tower returned; None if it did not."""
    if output.hidden_states is None:
        return None
    layer = inputs.get("vision_feature_layer")
    layer = model.config.vision_feature_layer if layer is None else layer
    states = output.hidden_states[layer if isinstance(layer, int) else layer[-1]]
    strategy = inputs.get("vision_feature_select_strategy")
    strategy = model.config.vision_feature_select_strategy if strategy is None else strategy
    return states[:, 1:] if strategy == "default" else states


class Llava(Family):
    name = "llava"
    classes = ("LlavaForConditionalGeneration",)
    prunes = "the image tokens after the projector, per image"
    relevance = "clip with dual_encoder=, else llm"
    tested = "tiny random weights against an independent reference, and the pocket model"
    vision_inputs = (
        "pixel_values",
        "image_sizes",
        "mm_encoder_outputs",
        "vision_feature_layer",
        "vision_feature_select_strategy",
    )
    varying = False

    def check(self, model: Any) -> None:
        tower = model.config.vision_config.model_type
        if tower not in TOWERS:
            raise UnsupportedModel(
                f"model is a {type(model).__name__} with a {tower!r} tower; "
                f"family {self.name!r} supports {' and '.join(TOWERS)}."
            )

    def read(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Vision]:
        images = list(output.pooler_output)
        tower = tower_states(model, output, inputs)
        states = list(tower) if tower is not None and len(tower) == len(images) else [None] * len(images)
        return [Vision(squares("image", "image", len(image)), state, image) for image, state in zip(images, states)]

    def sliceable(self, stream: Stream, inputs: dict[str, Any]) -> bool:
        return inputs.get("image_sizes") is None and inputs["pixel_values"].ndim == 4


register_family(Llava())

"""LLaVA-1.5: a CLIP (or SigLIP) tower, a two-layer projector, one fixed square of tokens per image."""

from typing import Any

from torch import Tensor

from vlprune.errors import UnsupportedModel
from vlprune.models.base import Family, Vision, register_family

TOWERS = ("clip_vision_model", "siglip_vision_model")


class Llava(Family):
    name = "llava"
    classes = ("LlavaForConditionalGeneration",)
    prunes = "the image tokens after the projector, per image"
    positions = "renumbered"
    relevance = "clip with dual_encoder=, else llm"
    tested = "tiny random weights against an independent reference, and the pocket model"
    vision_inputs = (
        "pixel_values",
        "image_sizes",
        "mm_encoder_outputs",
        "vision_feature_layer",
        "vision_feature_select_strategy",
    )

    def check(self, model: Any) -> None:
        tower = model.config.vision_config.model_type
        if tower not in TOWERS:
            raise UnsupportedModel(
                f"model is a {type(model).__name__} with a {tower!r} tower; "
                f"family 'llava' supports {' and '.join(TOWERS)}."
            )

    def read(self, model: Any, output: Any, inputs: dict[str, Any]) -> list[Vision]:
        features = list(output.pooler_output)
        tower = self._tower(model, output, inputs)
        states = list(tower) if tower is not None and len(tower) == len(features) else [None] * len(features)
        return [Vision(image, state) for image, state in zip(features, states)]

    def _tower(self, model: Any, output: Any, inputs: dict[str, Any]) -> Tensor | None:
        layer = inputs.get("vision_feature_layer")
        layer = model.config.vision_feature_layer if layer is None else layer
        layer = layer if isinstance(layer, int) else layer[-1]
        strategy = inputs.get("vision_feature_select_strategy")
        strategy = model.config.vision_feature_select_strategy if strategy is None else strategy
        if output.hidden_states is None:
            return None
        states = output.hidden_states[layer]
        return states[:, 1:] if strategy == "default" else states

    def output(self, visions: list[Vision]) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        return BaseModelOutputWithPooling(pooler_output=[vision.features for vision in visions])

    def cacheable(self, inputs: dict[str, Any]) -> bool:
        return inputs.get("image_sizes") is None and inputs["pixel_values"].ndim == 4


register_family(Llava())

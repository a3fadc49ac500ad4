"""Any other model with image placeholders and a decoder: each stretch of placeholders is taken for an image."""

import warnings
from typing import Any

from torch import Tensor

from vlprune.models.base import Family, Modality
from vlprune.models.registry import register_family, unsupported_model
from vlprune.types import Shape, square_shape


def image_token_id(config: Any) -> int | None:
    """The token id that stands for a visual token, whichever name the config has for it; None if it has none."""
    for name in ("image_token_id", "image_token_index"):
        if isinstance(getattr(config, name, None), int):
            return getattr(config, name)
    return None


def count_vectors(encoded: Any) -> int:
    """The number of vectors in a tensor (..., d) or in a list of such tensors.

    >>> import torch
    >>> count_vectors(torch.zeros(2, 3, 8)), count_vectors([torch.zeros(3, 8), torch.zeros(4, 8)])
    (6, 7)
    """
    if isinstance(encoded, Tensor):
        return encoded.shape[:-1].numel()
    return sum(map(count_vectors, encoded))


@register_family
class Generic(Family):
    name = "generic"
    classes = ()
    prunes = "each stretch of image placeholders, as one image"
    relevance = "llm"
    tested = "tiny random weights of Gemma3, Idefics3, SmolVLM, PaliGemma and ViP-LLaVA"
    vision_inputs = ("pixel_values", "pixel_attention_mask", "image_sizes", "mm_encoder_outputs")

    def check(self, model: Any) -> None:
        base = getattr(model, "base_model", None)
        fits = hasattr(model, "config") and image_token_id(model.config) is not None and hasattr(model, "generate")
        if not (fits and hasattr(base, "get_image_features") and hasattr(model, "get_decoder")):
            raise unsupported_model(model)
        warnings.warn(
            f"vlprune: {type(model).__name__} has no family of its own; "
            "family 'generic' takes each stretch of image placeholders for one image.",
            stacklevel=4,
        )

    def modalities(self, model: Any) -> list[Modality]:
        placeholder = image_token_id(model.config)
        assert placeholder is not None
        return [Modality("image", ("pixel_values",), "get_image_features", placeholder)]

    def image_shapes(
        self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any], run_lengths: list[int]
    ) -> list[Shape]:
        encoded = getattr(output, "pooler_output", None)
        placeholders = sum(run_lengths)
        count = placeholders if encoded is None else count_vectors(encoded)
        if count != placeholders:
            raise ValueError(f"input_ids has {placeholders} image placeholders, but the images have {count} tokens.")
        return [square_shape("image", "image", run) for run in run_lengths]

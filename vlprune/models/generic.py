"""Any other model with image placeholders and a decoder: each stretch of placeholders is taken for an image."""

import warnings
from typing import Any

from torch import Tensor

from vlprune.models.base import Family, Stream, register_family, unsupported
from vlprune.types import Shape, squares


def image_token(config: Any) -> int | None:
    """The token id that stands for a visual token, under whichever name the config has it."""
    for name in ("image_token_id", "image_token_index"):
        if isinstance(getattr(config, name, None), int):
            return getattr(config, name)
    return None


def rows(encoded: Any) -> int:
    """How many vectors a tensor holds, or a list of tensors.

    >>> import torch
    >>> rows(torch.zeros(2, 3, 8)), rows([torch.zeros(3, 8), torch.zeros(4, 8)])
    (6, 7)
    """
    if isinstance(encoded, Tensor):
        return encoded.shape[:-1].numel()
    return sum(map(rows, encoded))


class Generic(Family):
    name = "generic"
    classes = ()
    prunes = "each stretch of image placeholders, as one image"
    relevance = "llm"
    tested = "tiny random weights of Gemma3, Idefics3, SmolVLM, PaliGemma and ViP-LLaVA"
    vision_inputs = ("pixel_values", "pixel_attention_mask", "image_sizes", "mm_encoder_outputs")

    def check(self, model: Any) -> None:
        base = getattr(model, "base_model", None)
        fits = hasattr(model, "config") and image_token(model.config) is not None and hasattr(model, "generate")
        if not (fits and hasattr(base, "get_image_features") and hasattr(model, "get_decoder")):
            raise unsupported(model)
        warnings.warn(
            f"vlprune: {type(model).__name__} has no family of its own; "
            "family 'generic' takes each stretch of image placeholders for one image.",
            stacklevel=4,
        )

    def streams(self, model: Any) -> list[Stream]:
        placeholder = image_token(model.config)
        assert placeholder is not None
        return [Stream("image", ("pixel_values",), "get_image_features", placeholder)]

    def shapes(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Shape]:
        encoded = getattr(output, "pooler_output", None)
        count = sum(runs) if encoded is None else rows(encoded)
        if count != sum(runs):
            raise ValueError(f"input_ids has {sum(runs)} image placeholders, but the images have {count} tokens.")
        return [squares("image", "image", run) for run in runs]


register_family(Generic())

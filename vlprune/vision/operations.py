"""What a vision tower computes, by formula."""

from __future__ import annotations

from typing import Any

from vlprune.vision.cheaper_tower import leading_tokens
from vlprune.vision.merging import find_layers, merges_by_layer


def tower_operations(tower: Any, merge: float = 0.0) -> int:
    """Multiply-adds of the matrix products in a tower's layers, for one image of the size in its config.

    With `merge`, of a `CheaperTower`, also those of matching and merging tokens.

    >>> from transformers import CLIPVisionConfig, CLIPVisionModel
    >>> sizes = {"hidden_size": 96, "num_attention_heads": 6, "intermediate_size": 384, "num_hidden_layers": 6}
    >>> tower = CLIPVisionModel(CLIPVisionConfig(image_size=336, patch_size=14, **sizes))
    >>> round(tower_operations(tower, merge=0.5) / tower_operations(tower), 3)
    0.7
    """
    config, layers, leading = tower.config, find_layers(tower), leading_tokens(tower)
    patches = (config.image_size // config.patch_size) ** 2
    total = 0
    for layer, count in zip(layers, merges_by_layer(patches, len(layers), merge)):
        mlp, width = _weights(layer.mlp), config.hidden_size
        tokens = leading + patches
        total += (_weights(layer) - mlp) * tokens + 2 * tokens * tokens * width
        if count:
            matching = (patches // 2) * (patches - patches // 2) * (width // config.num_attention_heads)
            total += matching + count * count * width
        patches -= count
        total += mlp * (leading + patches)
    return total


def _weights(module: Any) -> int:
    """How many weights the matrices of a module have."""
    return sum(weight.numel() for weight in module.parameters() if weight.ndim > 1)

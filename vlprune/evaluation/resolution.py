"""A fixed input resolution, for models whose processors show what they are given at its own size."""

from __future__ import annotations

from typing import Any

from vlprune.errors import UserError
from vlprune.evaluation.load_model import LoadedModel
from vlprune.evaluation.one_question import prepare_inputs


def check_resolution(loaded: LoadedModel, resolution: int) -> None:
    """Refuse a resolution that the model's processor changes.

    A square of that side goes through the processor, and its pixels are counted: as one image, as tiles (beside which a
    small view of the whole may stand), or as patches.
    """
    from PIL import Image

    inputs = prepare_inputs(loaded, Image.new("RGB", (resolution, resolution)), "?")
    seen, tile = count_pixels(inputs, getattr(loaded.processor, "image_processor", loaded.processor))
    if resolution**2 in (seen, seen - tile):
        return
    side, tiles = round(tile**0.5), seen // tile
    how = f"at {side} × {side} pixels" if tiles == 1 else f"in {tiles} tiles of {side} × {side} pixels"
    raise UserError(f"--resolution {resolution}: {loaded.name} sees such an image {how}, whatever its size.")


def count_pixels(inputs: dict[str, Any], image_processor: Any) -> tuple[int, int]:
    """The pixels of one image that a model sees, and those of one of its tiles; of patches all are one tile.

    >>> import torch
    >>> count_pixels({"pixel_values": torch.zeros(1, 5, 3, 336, 336)}, None)   # LLaVA-NeXT at 672: four tiles, one view
    (564480, 112896)
    """
    if "image_grid_thw" in inputs:  # Qwen's: rows and columns of patches
        seen = int(inputs["image_grid_thw"][0].prod()) * image_processor.patch_size**2
        return seen, seen
    pixels = inputs["pixel_values"]
    height, width = pixels.shape[-2:]
    return pixels[..., 0, :, :].numel(), height * width

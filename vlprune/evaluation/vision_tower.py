"""A vision transformer by itself: load one by its name, and encode images as the tokens that methods choose from."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vlprune.errors import UserError
from vlprune.evaluation.load_model import announce_hub_lookup, explain_load_errors, pick_device, silence_logging
from vlprune.models.tower_attention import attention_modules, attention_of_module, record_call
from vlprune.types import TokenView

if TYPE_CHECKING:
    from PIL import Image

#: The layer whose hidden states are the tokens: the last but one, as LLaVA reads its tower.
LAYER = -2


@dataclass(frozen=True)
class VisionTower:
    """A vision transformer that sees images of `pixels` a side, with the channels' `mean` and `std` taken off."""

    name: str
    model: Any
    pixels: int
    mean: tuple[float, ...]
    std: tuple[float, ...]

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of its patches."""
        side = self.pixels // int(self.model.config.patch_size)
        return side, side

    @torch.no_grad()
    def encode(self, images: Sequence[Image.Image]) -> TokenView:
        """The tokens of whole images, each squeezed into a square: hidden states of the last layer but one.

        There is no projector: `features` and `tower` are the same, and `project` changes nothing. Attention and keys
        are None where the tower's attention cannot be computed again.
        """
        pixels = torch.stack([self._prepare(image) for image in images]).to(self.model.device, self.model.dtype)
        modules = attention_modules(self.model)
        takes = inspect.signature(self.model.forward).parameters
        more = {"interpolate_pos_encoding": True} if "interpolate_pos_encoding" in takes else {}
        with record_call(modules[LAYER] if modules else None) as call:
            states = self.model(pixels, output_hidden_states=True, **more).hidden_states[LAYER]
        leading = states.shape[1] - self.grid[0] * self.grid[1]
        if leading < 0:
            raise UserError(f"--tower {self.name}: its {states.shape[1]} tokens are fewer than its patches.")
        tokens = states[:, leading:].float().cpu()
        found: dict[str, Any] = {}
        if call is not None:
            seen = attention_of_module(modules[LAYER], call.hidden_states, leading)
            found = {"attention": seen.attention.float().cpu(), "keys": seen.keys.float().cpu()}
        return TokenView(tokens, self.grid, tokens, project=lambda same: same, **found)

    def _prepare(self, image: Image.Image) -> Tensor:
        """(3, pixels, pixels) the whole image, scaled."""
        import numpy as np

        levels = np.asarray(image.convert("RGB").resize((self.pixels, self.pixels), 3), np.float32) / 255  # 3: bicubic
        return torch.from_numpy((levels - np.array(self.mean)) / np.array(self.std)).float().permute(2, 0, 1)


def load_tower(name: str, pixels: int | None, device: str) -> VisionTower:
    """The pocket model's tower, or that of a folder or hub id, such as a CLIP, a SigLIP or a DINOv2.

    `pixels` is the side of the square that images are squeezed into; by default what its image processor says.
    """
    where = pick_device(device)
    silence_logging(bars=name != "pocket" and not Path(name).is_dir())
    if name == "pocket":
        from vlprune import pocket

        model, processor, _ = pocket.load()
        tower, prepare = model.base_model.vision_tower, processor.image_processor
    else:
        from transformers import AutoModel

        # 5.17 hides it elsewhere without torchvision
        from transformers.models.auto.image_processing_auto import AutoImageProcessor

        announce_hub_lookup(name)
        with explain_load_errors("--tower", name):
            model = AutoModel.from_pretrained(name, dtype=torch.float32, use_safetensors=True).eval()
            prepare = AutoImageProcessor.from_pretrained(name)
        tower = getattr(model, "vision_model", None) or getattr(model, "vision_tower", None) or model
    patch = getattr(tower.config, "patch_size", None)
    if not isinstance(patch, int):
        raise UserError(f"--tower {name} is a {type(tower).__name__}, which has no square patches.")
    pixels = pixels or _usual_pixels(prepare, tower.config)
    if pixels % patch:
        raise UserError(
            f"--pixels {pixels}: the patches of {name} are {patch} pixels wide, so choose a multiple of it."
        )
    return VisionTower(name, tower.to(where), pixels, tuple(prepare.image_mean), tuple(prepare.image_std))


def _usual_pixels(prepare: Any, config: Any) -> int:
    """The side of the images that an image processor makes."""
    for size in (getattr(prepare, "crop_size", None), getattr(prepare, "size", None)):
        sides = dict(size or {})
        if sides.get("height"):
            return int(sides["height"])
    return int(config.image_size)

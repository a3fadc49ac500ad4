"""LLaVA-OneVision: SigLIP and Qwen2; images in tiles, and videos of pooled frames. LLaVA-Video has its architecture."""

import math
from collections.abc import Hashable
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from vlprune.models.base import Modality
from vlprune.models.llava import Llava
from vlprune.models.llava_next import TiledFamily, resize_frames, video_pixels
from vlprune.models.registry import register_family
from vlprune.types import Shape, grid_shape


@register_family
class LlavaOnevision(TiledFamily):
    name = "llava_onevision"
    classes = ("LlavaOnevisionForConditionalGeneration",)
    prunes = "images as llava_next; of a video, the pooled tokens of all frames (its one newline stays)"
    relevance = "clip with dual_encoder= (a SigLIP, sign +), else llm"
    tested = "tiny random weights against an independent reference; 7B-sized random weights on a GPU"
    vision_inputs = (
        *Llava.vision_inputs,
        "pixel_values_videos",
        "image_sizes_videos",
        "vision_aspect_ratio",
        "batch_num_images",
    )
    has_dual_encoder = True

    def shortcuts(self, model: Any) -> dict[str, Any]:
        """`pool_frames` for the model's own pooling."""
        base, own = model.base_model, getattr(model.base_model, "apply_pooling", None)
        if not isinstance(own, MethodType):  # one that somebody has given this model
            return {}

        def apply_pooling(image_features: Tensor) -> Tensor:
            training = torch.is_grad_enabled() and image_features.requires_grad  # gradients may round otherwise
            if training or not _pools_exactly(image_features) or not _pools_alike(base, own, image_features):
                return own(image_features)
            return pool_frames(image_features)

        return {"apply_pooling": apply_pooling}

    def image_shapes(
        self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any], run_lengths: list[int]
    ) -> list[Shape]:
        if modality.kind == "image":
            return super().image_shapes(model, modality, output, inputs, run_lengths)
        videos, frames = video_pixels(inputs).shape[:2]
        side = pooled_side(model)
        return [grid_shape("video", "frame", (side, side), frames, extra=1)] * videos

    def arrange_patches(
        self, model: Any, modality: Modality, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        if modality.kind == "image":
            return super().arrange_patches(model, modality, values, inputs, shapes)
        return list(pool_frames(values).reshape(len(shapes), shapes[0].n, -1))


def pooled_side(model: Any) -> int:
    """The rows and columns of a frame after pooling."""
    vision = model.config.vision_config
    return math.ceil(vision.image_size // vision.patch_size / 2)


#: The most values that torch's CUDA kernel for channels that lie side by side takes.
MAX_VALUES = 2**31 - 2


def pool_frames(frames: Tensor) -> Tensor:
    """Frames (frames, rows², c) with half as many rows and columns, (frames, ⌈rows / 2⌉², c), as the model pools them.

    The model first copies them so that each channel is a picture of its own. torch's CUDA kernel for such pictures has
    one thread for each place of the small picture, 196 of them, and each goes through all frames and channels. Here the
    channels stay side by side, as they come: nothing is copied, and each value has its thread.

    >>> pool_frames(torch.arange(32.0).reshape(1, 16, 2))[0].tolist()
    [[5.0, 6.0], [9.0, 10.0], [21.0, 22.0], [25.0, 26.0]]
    """
    side = math.ceil(math.isqrt(frames.shape[1]) / 2)

    def resize(picture: Tensor) -> Tensor:
        return interpolate(picture, size=(side, side), mode="bilinear")

    some = max(1, MAX_VALUES // frames[0].numel())
    parts = [resize_frames(part, resize) for part in frames.split(some)]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _pools_exactly(frames: Tensor) -> bool:
    """Whether torch's two kernels, for channels side by side and for pictures, may be relied on to round alike.

    In float32 on a GPU they do not where a frame has an odd number of rows (27 to 14, say), which makes weights that
    are no powers of two.
    """
    return frames.device.type != "cuda" or frames.dtype != torch.float32 or math.isqrt(frames.shape[1]) % 2 == 0


def _pools_alike(base: Any, own: MethodType, frames: Tensor) -> bool:
    """Whether `pool_frames` gives what the model's own pooling gives for such frames, bit for bit; tried once each.

    Another version of the model may pool otherwise, and another device may round otherwise.
    """
    known = _ALIKE.setdefault(base, {})
    key = (own.__func__, frames.shape[1:], frames.dtype, frames.device)
    if key not in known:
        noise = torch.randn(1, *frames.shape[1:], generator=torch.Generator().manual_seed(0))
        noise = noise.to(frames.device, frames.dtype)
        known[key] = torch.equal(own(noise), pool_frames(noise))
    return known[key]


_ALIKE: WeakKeyDictionary[Any, dict[Hashable, bool]] = WeakKeyDictionary()

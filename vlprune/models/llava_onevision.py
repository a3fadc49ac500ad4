"""LLaVA-OneVision: SigLIP and Qwen2; images in tiles, and videos of pooled frames. LLaVA-Video has its architecture."""

import math
from typing import Any

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
        side = pooled_side(model)
        frames = resize_frames(values, lambda picture: interpolate(picture, size=(side, side), mode="bilinear"))
        return list(frames.reshape(len(shapes), shapes[0].n, -1))


def pooled_side(model: Any) -> int:
    """The rows and columns of a frame after pooling."""
    vision = model.config.vision_config
    return math.ceil(vision.image_size // vision.patch_size / 2)

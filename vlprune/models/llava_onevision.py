"""LLaVA-OneVision: SigLIP and Qwen2; images in tiles, and videos of pooled frames. LLaVA-Video has its architecture."""

import math
from typing import Any

from vlprune.models.base import Family, Stream, Vision, register_family
from vlprune.models.llava import Llava, tower_states
from vlprune.models.llava_next import read_images
from vlprune.models.shape import stacked


class LlavaOnevision(Family):
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

    def read(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Vision]:
        if stream.kind == "image":
            return read_images(model, output, inputs)
        pixels = inputs.get("pixel_values_videos", inputs.get("pixel_values"))
        if pixels is None:
            raise ValueError("videos that were encoded beforehand cannot be pruned: pass pixel_values_videos.")
        videos, frames = pixels.shape[:2]
        vision = model.config.vision_config
        side = math.ceil(vision.image_size // vision.patch_size / 2)
        shape = stacked("video", "frame", (side, side), frames, extra=1)
        states = tower_states(model, output, inputs)
        if states is None:
            return [Vision(shape)] * videos
        return [Vision(shape, tower) for tower in model.base_model.apply_pooling(states).reshape(videos, shape.n, -1)]


register_family(LlavaOnevision())

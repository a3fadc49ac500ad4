"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images and videos of any size, placed in time, height and width (m-RoPE)."""

from typing import Any

from vlprune.models.base import Family, Stream, Vision, register_family
from vlprune.models.shape import stacked


class Qwen2VL(Family):
    name = "qwen2_vl"
    classes = ("Qwen2VLForConditionalGeneration",)
    prunes = "the merged 2x2 patches of an image, or of all frames of a video"
    positions = ("grid",)
    relevance = "llm"
    tested = "tiny random weights against an independent reference"
    vision_inputs = (
        "pixel_values",
        "pixel_values_videos",
        "image_grid_thw",
        "video_grid_thw",
        "second_per_grid_ts",
        "mm_encoder_outputs",
    )

    def read(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Vision]:
        merge = model.config.vision_config.spatial_merge_size
        # Qwen3-VL hands the sizes of videos on under the images' name
        grids = inputs[f"{stream.kind}_grid_thw" if f"{stream.kind}_grid_thw" in inputs else "image_grid_thw"]
        name = "image" if stream.kind == "image" else "frame"
        sizes = [(time, (high // merge, wide // merge)) for time, high, wide in grids.tolist()]
        return [Vision(stacked(stream.kind, name, grid, time)) for time, grid in sizes]


class Qwen25VL(Qwen2VL):
    name = "qwen2_5_vl"
    classes = ("Qwen2_5_VLForConditionalGeneration",)
    tested = "tiny random weights against an independent reference; 7B-sized random weights on a GPU"


class Qwen3VL(Qwen2VL):
    name = "qwen3_vl"
    classes = ("Qwen3VLForConditionalGeneration",)
    prunes = "as qwen2_vl; what the tower adds to the first layers (deepstack) is pruned with its tokens"


register_family(Qwen2VL())
register_family(Qwen25VL())
register_family(Qwen3VL())

"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images and videos of any size, placed in time, height and width (m-RoPE)."""

from typing import Any

import torch
from torch import Tensor

from vlprune.models.base import Family, Stream, register_family
from vlprune.models.tower_attention import RecordedCall, TowerAttention, received
from vlprune.types import Shape, stacked


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

    def sizes(self, stream: Stream, inputs: dict[str, Any]) -> Tensor:
        """(N, 3) time, height and width in patches."""
        # Qwen3-VL hands the sizes of videos on under the images' name
        return inputs[f"{stream.kind}_grid_thw" if f"{stream.kind}_grid_thw" in inputs else "image_grid_thw"]

    def shapes(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Shape]:
        merge = model.config.vision_config.spatial_merge_size
        name = "image" if stream.kind == "image" else "frame"
        grids = [(time, (high // merge, wide // merge)) for time, high, wide in self.sizes(stream, inputs).tolist()]
        return [stacked(stream.kind, name, grid, time) for time, grid in grids]

    def states(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any]) -> Tensor | None:
        states = getattr(output, "last_hidden_state", None)
        return None if states is None else self.in_order(model, stream, states, inputs)

    def in_order(self, model: Any, stream: Stream, values: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Values (patches, c) as the tower computes them, in the order of the patches."""
        return values

    def arranged(
        self, model: Any, stream: Stream, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        group = model.config.vision_config.spatial_merge_size**2
        return list(values.reshape(len(values) // group, -1).split([shape.n for shape in shapes]))

    def project(self, model: Any, states: Tensor) -> Tensor:
        visual = model.base_model.visual
        patches = states.reshape(-1, states.shape[2] // model.config.vision_config.spatial_merge_size**2)
        return visual.merger(patches).view(*states.shape[:2], -1)

    def attention_module(self, model: Any, stream: Stream, inputs: dict[str, Any]) -> Any:
        return model.base_model.visual.blocks[-1].attn

    @torch.no_grad()
    def tower_attention(
        self, model: Any, stream: Stream, call: RecordedCall, output: Any, inputs: dict[str, Any]
    ) -> TowerAttention:
        from transformers.models.qwen2_vl.modeling_qwen2_vl import apply_rotary_pos_emb_vision

        module, hidden = self.attention_module(model, stream, inputs), call.hidden
        queries, keys = module.qkv(hidden).view(len(hidden), 3, module.num_heads, -1).unbind(1)[:2]
        queries, keys = apply_rotary_pos_emb_vision(queries, keys, *call.kwargs["position_embeddings"])
        lengths = call.kwargs["cu_seqlens"].diff().tolist()
        pairs = zip(queries.split(lengths), keys.split(lengths))
        attention = [received(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cls=False)[0] for q, k in pairs]
        seen = torch.cat([torch.cat(attention)[:, None], keys.float().mean(dim=1)], dim=1)
        seen = self.in_order(model, stream, seen, inputs)
        return TowerAttention(seen[:, 0], seen[:, 1:])


class Qwen25VL(Qwen2VL):
    name = "qwen2_5_vl"
    classes = ("Qwen2_5_VLForConditionalGeneration",)
    tested = "tiny random weights against an independent reference; 7B-sized random weights on a GPU"

    def in_order(self, model: Any, stream: Stream, values: Tensor, inputs: dict[str, Any]) -> Tensor:
        """The tower sorts its patches into windows."""
        from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import get_vision_window_index

        visual = model.base_model.visual
        windows, _ = get_vision_window_index(
            self.sizes(stream, inputs),
            spatial_merge_size=visual.spatial_merge_size,
            window_size=visual.window_size,
            patch_size=visual.patch_size,
            kwargs={},
        )
        group = visual.spatial_merge_size**2
        blocks = values.reshape(len(windows), group, -1)[windows.to(values.device).argsort()]
        return blocks.reshape(values.shape)


class Qwen3VL(Qwen2VL):
    name = "qwen3_vl"
    classes = ("Qwen3VLForConditionalGeneration",)
    prunes = "as qwen2_vl; what the tower adds to the first layers (deepstack) is pruned with its tokens"


register_family(Qwen2VL())
register_family(Qwen25VL())
register_family(Qwen3VL())

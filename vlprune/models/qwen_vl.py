"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: images and videos of any size, placed in time, height and width (m-RoPE)."""

from typing import Any

import torch
from torch import Tensor

from vlprune.models.base import Family, Modality
from vlprune.models.registry import register_family
from vlprune.models.tower_attention import RecordedCall, TowerAttention, attention_received
from vlprune.types import Shape, grid_shape


@register_family
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

    def patch_grids(self, modality: Modality, inputs: dict[str, Any]) -> Tensor:
        """(N, 3) time, height and width of each image or video, in patches."""
        # Qwen3-VL hands the sizes of videos on under the images' name
        return inputs[f"{modality.kind}_grid_thw" if f"{modality.kind}_grid_thw" in inputs else "image_grid_thw"]

    def image_shapes(
        self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any], run_lengths: list[int]
    ) -> list[Shape]:
        merge = model.config.vision_config.spatial_merge_size
        name = "image" if modality.kind == "image" else "frame"
        return [
            grid_shape(modality.kind, name, (high // merge, wide // merge), time)
            for time, high, wide in self.patch_grids(modality, inputs).tolist()
        ]

    def tower_states(self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any]) -> Tensor | None:
        states = getattr(output, "last_hidden_state", None)
        return None if states is None else self.restore_patch_order(model, modality, states, inputs)

    def restore_patch_order(self, model: Any, modality: Modality, values: Tensor, inputs: dict[str, Any]) -> Tensor:
        """Values (patches, c) in the order of the patches, from the order in which the tower computes them."""
        return values

    def arrange_patches(
        self, model: Any, modality: Modality, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        group = model.config.vision_config.spatial_merge_size**2
        return list(values.reshape(len(values) // group, -1).split([shape.n for shape in shapes]))

    def project(self, model: Any, states: Tensor) -> Tensor:
        visual = model.base_model.visual
        patches = states.reshape(-1, states.shape[2] // model.config.vision_config.spatial_merge_size**2)
        return visual.merger(patches).view(*states.shape[:2], -1)

    def attention_module(self, model: Any, modality: Modality, inputs: dict[str, Any]) -> Any:
        return model.base_model.visual.blocks[-1].attn

    @torch.no_grad()
    def tower_attention(
        self, model: Any, modality: Modality, call: RecordedCall, output: Any, inputs: dict[str, Any]
    ) -> TowerAttention:
        from transformers.models.qwen2_vl.modeling_qwen2_vl import apply_rotary_pos_emb_vision

        module, hidden = self.attention_module(model, modality, inputs), call.hidden_states
        queries, keys = module.qkv(hidden).view(len(hidden), 3, module.num_heads, -1).unbind(1)[:2]
        queries, keys = apply_rotary_pos_emb_vision(queries, keys, *call.kwargs["position_embeddings"])
        lengths = call.kwargs["cu_seqlens"].diff().tolist()
        attention = [
            attention_received(q.transpose(0, 1)[None], k.transpose(0, 1)[None], cls=False)[0]
            for q, k in zip(queries.split(lengths), keys.split(lengths))
        ]
        both = torch.cat([torch.cat(attention)[:, None], keys.float().mean(dim=1)], dim=1)
        both = self.restore_patch_order(model, modality, both, inputs)
        return TowerAttention(both[:, 0], both[:, 1:])


@register_family
class Qwen25VL(Qwen2VL):
    name = "qwen2_5_vl"
    classes = ("Qwen2_5_VLForConditionalGeneration",)
    tested = "tiny random weights against an independent reference; 7B-sized random weights on a GPU"

    def restore_patch_order(self, model: Any, modality: Modality, values: Tensor, inputs: dict[str, Any]) -> Tensor:
        """The same; this tower sorts its patches into windows."""
        from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import get_vision_window_index

        visual = model.base_model.visual
        windows, _ = get_vision_window_index(
            self.patch_grids(modality, inputs),
            spatial_merge_size=visual.spatial_merge_size,
            window_size=visual.window_size,
            patch_size=visual.patch_size,
            kwargs={},
        )
        group = visual.spatial_merge_size**2
        blocks = values.reshape(len(windows), group, -1)[windows.to(values.device).argsort()]
        return blocks.reshape(values.shape)


@register_family
class Qwen3VL(Qwen2VL):
    name = "qwen3_vl"
    classes = ("Qwen3VLForConditionalGeneration",)
    prunes = "as qwen2_vl; what the tower adds to the first layers (deepstack) is pruned with its tokens"

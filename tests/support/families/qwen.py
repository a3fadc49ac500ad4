"""Qwen2-VL, Qwen2.5-VL and Qwen3-VL: positions in time, height and width, and features for several layers."""

import torch
from transformers import (
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2VLConfig,
    Qwen2VLForConditionalGeneration,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from tests.support.families.case import (
    CLOSE,
    IMAGE,
    OPEN,
    PAD,
    SPECIAL,
    TEXT,
    VIDEO,
    Case,
    Token,
    Visual,
    flat,
    noise,
    words,
)

TOKENS = {"image_token_id": IMAGE, "video_token_id": VIDEO}
MARKS = {"vision_start_token_id": OPEN, "vision_end_token_id": CLOSE}
PIXELS = 3 * 2 * 4 * 4  # channels, time, height and width of a patch
VISION = {"depth": 2, "num_heads": 2, "patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2}


class Qwen(Case):
    layouts = ("single", "ragged", "video", "mixed")
    positions = ("grid",)
    special = Case.special | {OPEN, CLOSE}
    images = ((4, 3), (2, 5), (3, 3), (5, 2), (4, 4))  # tokens high and wide, after 2 x 2 patches are merged
    videos = ((3, 2, 3), (2, 3, 2))
    interval = 1  # between a video's steps, in positions
    split = False  # whether a video's steps have runs of their own

    def visual(self, kind, name, seed, time, rows, columns):
        tokens = []
        for step in range(time):
            moved = 0 if self.split else step * self.interval
            tokens += [Token(step, offset=(moved, row, column)) for row in range(rows) for column in range(columns)]
        runs = [rows * columns] * time if self.split else [len(tokens)]
        pixels = noise(time * rows * columns * 4, PIXELS, seed=seed)
        size, parts = (time, 2 * rows, 2 * columns), [(name, (rows, columns))] * time
        return Visual(kind, pixels, parts, tokens, runs, size, advance=max(rows, columns))

    def image(self, seed):
        return self.visual("image", "image", seed, 1, *self.images[seed % len(self.images)])

    def video(self, seed):
        return self.visual("video", "frame", seed, *self.videos[seed % len(self.videos)])

    def spelled(self, visual):
        ids = []
        for number, run in enumerate(visual.runs):
            stamp = words(2, seed=number) if visual.kind == "video" and self.split else []
            ids += [*stamp, OPEN, *[self.placeholders[visual.kind]] * run, CLOSE]
        return ids

    def companions(self, ids):
        return {"mm_token_type_ids": (ids == IMAGE).int() + 2 * (ids == VIDEO).int()}

    def tensors(self, samples):
        given = super().tensors(samples)
        for kind in ("image", "video"):
            sizes = [visual.size for sample in samples for visual in sample.visuals if visual.kind == kind]
            if sizes:
                given[f"{kind}_grid_thw"] = torch.tensor(sizes)
        return given

    def features(self, model, visual):
        encoder = model.model.get_image_features if visual.kind == "image" else model.model.get_video_features
        return encoder(visual.pixels, torch.tensor([visual.size]))

    def encode(self, model, visual):
        return flat(self.features(model, visual).pooler_output), []

    def states(self, model, prompt, places):
        output = model.model.language_model(
            inputs_embeds=torch.stack(prompt.vectors)[None],
            position_ids=torch.tensor(places).T[:, None],
            attention_mask=torch.ones(1, len(prompt.ids), dtype=torch.long),
            use_cache=False,
            **self.deep(prompt),
        )
        return output.last_hidden_state[0]

    def deep(self, prompt):
        return {}


ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}


class Qwen2VL(Qwen):
    name, model_class = "qwen2_vl", Qwen2VLForConditionalGeneration

    def config(self):
        vision = {**VISION, "embed_dim": 24, "hidden_size": 32, "mlp_ratio": 2}
        text = {**TEXT, **SPECIAL, "rope_parameters": ROPE}
        return Qwen2VLConfig(vision_config=vision, text_config=text, **TOKENS, **MARKS)


class Qwen25VL(Qwen):
    name, model_class = "qwen2_5_vl", Qwen2_5_VLForConditionalGeneration
    interval = 8  # 4 a second, 2 seconds a step

    def config(self):
        vision = {**VISION, "hidden_size": 24, "intermediate_size": 48, "out_hidden_size": 32}
        vision |= {"window_size": 16, "fullatt_block_indexes": [1], "tokens_per_second": 4}
        text = {**TEXT, **SPECIAL, "rope_parameters": ROPE}
        return Qwen2_5_VLConfig(vision_config=vision, text_config=text, **TOKENS, **MARKS)

    def tensors(self, samples):
        given = super().tensors(samples)
        if "video_grid_thw" in given:
            given["second_per_grid_ts"] = torch.full((len(given["video_grid_thw"]),), 2.0)
        return given


class Qwen3VL(Qwen):
    name, model_class, split = "qwen3_vl", Qwen3VLForConditionalGeneration, True

    def config(self):
        vision = {**VISION, "depth": 3, "hidden_size": 24, "intermediate_size": 48, "out_hidden_size": 32}
        vision |= {"num_position_embeddings": 64, "deepstack_visual_indexes": [0, 1]}
        rope = {**ROPE, "mrope_interleaved": True}
        text = {**TEXT, "num_hidden_layers": 3, "head_dim": 8, "pad_token_id": PAD, "rope_parameters": rope}
        return Qwen3VLConfig(vision_config=vision, text_config=text, **TOKENS, **MARKS)

    def encode(self, model, visual):
        output = self.features(model, visual)
        return flat(output.pooler_output), [flat(level) for level in output.deepstack_features]

    def deep(self, prompt):
        """What is added to the visual tokens after the first layers."""
        visual = [levels for levels in prompt.levels if levels]
        if not visual:
            return {}
        return {
            "visual_pos_masks": torch.tensor([[bool(levels) for levels in prompt.levels]]),
            "deepstack_visual_embeds": [torch.stack(level) for level in zip(*visual)],
        }

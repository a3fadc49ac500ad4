"""LLaVA-1.5, LLaVA-NeXT (also -Video), LLaVA-OneVision and Video-LLaVA: tiles, newlines, frames and class tokens."""

from typing import ClassVar

import torch
from transformers import (
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaNextConfig,
    LlavaNextForConditionalGeneration,
    LlavaNextVideoConfig,
    LlavaNextVideoForConditionalGeneration,
    LlavaOnevisionConfig,
    LlavaOnevisionForConditionalGeneration,
    Qwen2Config,
    VideoLlavaConfig,
    VideoLlavaForConditionalGeneration,
)

from tests.support.families.case import (
    IMAGE,
    PATCH,
    SPECIAL,
    TEXT,
    VIDEO,
    Case,
    Token,
    Visual,
    clip_tower,
    flat,
    grid,
    llama,
    noise,
    siglip_tower,
)


class Llava(Case):
    """Five by five tokens per image."""

    name, model_class = "llava", LlavaForConditionalGeneration

    def config(self):
        return LlavaConfig(vision_config=clip_tower(5 * PATCH), text_config=llama(), image_token_index=IMAGE)

    def image(self, seed):
        return grid("image", "image", 5, 5, noise(1, 3, 5 * PATCH, 5 * PATCH, seed=seed))


def anyres(pixels, size, side, down, across, top=0, left=0, shrunk=None):
    """A base tile, then what unpadding left of `down` x `across` tiles, row by row, with a newline after each row.

    Unpadding cuts `top` rows above and below, `left` columns on both sides. `shrunk` is the grid after interpolation.
    """
    height, width = down * side - 2 * top, across * side - 2 * left
    rows, columns = shrunk or (height, width)
    tokens = [Token(0)] * side**2
    cells = [set() for _ in range(down * across)]
    for row in range(rows):
        for column in range(columns):
            y, x = top + (row + 0.5) * height / rows, left + (column + 0.5) * width / columns
            tile = int(y // side) * across + int(x // side)
            cells[tile].add((row, column))
            tokens.append(Token(1 + tile, line=row))
        tokens.append(Token(None, line=row))
    grids = [(len({row for row, _ in cell}), len({column for _, column in cell})) for cell in cells]
    parts = [("base", (side, side))] + [("tile", shape) for shape in grids]
    return Visual("image", pixels, parts, tokens, [len(tokens)], size)


class Anyres(Case):
    """`sizes` are (height, width) of images, then what `anyres` is to make of each, worked out by hand."""

    side: int
    sizes: tuple

    def tile(self, count, seed):
        return noise(count, 3, self.side * PATCH, self.side * PATCH, seed=seed)

    def image(self, seed, number=None):
        size, layout = self.sizes[(seed if number is None else number) % len(self.sizes)]
        count = 1 + layout["down"] * layout["across"]
        return anyres(self.tile(count, seed), size, self.side, **layout)

    def tensors(self, samples):
        images = [visual for sample in samples for visual in sample.visuals if visual.kind == "image"]
        videos = [visual for sample in samples for visual in sample.visuals if visual.kind == "video"]
        given = {}
        if images:
            most = max(len(image.pixels) for image in images)
            padded = [torch.cat([i.pixels, torch.zeros(most - len(i.pixels), *i.pixels.shape[1:])]) for i in images]
            given["pixel_values"] = torch.stack(padded)
            given["image_sizes"] = torch.tensor([image.size for image in images])
        if videos:
            given["pixel_values_videos"] = torch.stack([video.pixels for video in videos])
        return given

    def encode(self, model, visual):
        if visual.kind == "video":
            return flat(model.model.get_video_features(visual.pixels[None]).pooler_output), []
        sizes = torch.tensor([visual.size])
        return flat(model.model.get_image_features(visual.pixels[None], sizes).pooler_output), []


NEXT_SIZES = (
    ((40, 64), {"down": 2, "across": 2, "top": 1}),  # 5 of 8 rows hold the image; the odd one stays
    ((64, 24), {"down": 2, "across": 1}),
    ((28, 60), {"down": 1, "across": 2}),
    ((64, 34), {"down": 2, "across": 2, "left": 2}),
    ((30, 30), {"down": 1, "across": 1}),
)
PINPOINTS = [[32, 32], [32, 64], [64, 32], [64, 64]]


class LlavaNext(Anyres):
    name, model_class, side, sizes = "llava_next", LlavaNextForConditionalGeneration, 4, NEXT_SIZES

    def config(self):
        return LlavaNextConfig(
            vision_config=clip_tower(self.side * PATCH),
            text_config=llama(),
            image_token_index=IMAGE,
            image_grid_pinpoints=PINPOINTS,
        )


class LlavaNextVideo(Anyres):
    name, model_class, side, sizes = "llava_next_video", LlavaNextVideoForConditionalGeneration, 4, NEXT_SIZES
    layouts = ("single", "ragged", "video", "mixed")

    def config(self):
        return LlavaNextVideoConfig(
            vision_config=clip_tower(self.side * PATCH),
            text_config=llama(),
            image_token_index=IMAGE,
            video_token_index=VIDEO,
            image_grid_pinpoints=PINPOINTS,
        )

    def video(self, seed):
        return grid("video", "frame", 2, 2, self.tile(4, seed), count=4)  # 4 x 4 patches, pooled


class LlavaOnevision(Anyres):
    """A row's only image is cut into tiles; of several images in a row each is one tile with one newline."""

    name, model_class, side = "llava_onevision", LlavaOnevisionForConditionalGeneration, 3
    layouts = ("single", "ragged", "video", "mixed", "shrunk")
    sizes = (
        ((30, 48), {"down": 2, "across": 2, "top": 1}),
        ((48, 20), {"down": 2, "across": 1}),
        None,
        None,
        ((20, 48), {"down": 1, "across": 2}),
        ((72, 96), {"down": 4, "across": 4, "top": 1, "shrunk": (8, 9)}),  # sqrt(10 * 12 / (9 * 9)) = 1.22 > 1.1
        None,
        ((24, 24), {"down": 1, "across": 1}),
    )

    def config(self):
        side = 24
        return LlavaOnevisionConfig(
            vision_config=siglip_tower(self.side * PATCH),
            text_config=Qwen2Config(**TEXT, **SPECIAL),
            image_token_index=IMAGE,
            video_token_index=VIDEO,
            image_grid_pinpoints=[[side, side], [side, 48], [48, side], [48, 48], [96, 96]],
        )

    def image(self, seed):
        if self.sizes[seed % len(self.sizes)] is not None:
            return super().image(seed)
        tokens = [Token(0)] * self.side**2 + [Token(None)]
        parts = [("base", (self.side, self.side))]
        return Visual("image", self.tile(1, seed), parts, tokens, [len(tokens)], (24, 40))

    def samples(self, layout):
        if layout == "shrunk":
            return [self.sample(2, self.image(5), 5)]
        return super().samples(layout)

    def video(self, seed):
        frames = grid("video", "frame", 2, 2, self.tile(4, seed), count=4)  # 3 x 3 patches, pooled
        return Visual("video", frames.pixels, frames.parts, [*frames.tokens, Token(None)], [17])

    def tensors(self, samples):
        given = super().tensors(samples)
        if "pixel_values" in given:
            counts = [sum(visual.kind == "image" for visual in sample.visuals) for sample in samples]
            given["batch_num_images"] = torch.tensor(counts)
        return given

    def encode(self, model, visual):
        if visual.kind == "image":
            number = torch.tensor([1 if len(visual.pixels) > 1 else 2])  # one of two is not cut into tiles
            pixels, sizes = visual.pixels[None], torch.tensor([visual.size])
            if int(number) == 2:
                pixels, sizes = pixels.repeat(2, 1, 1, 1, 1), sizes.repeat(2, 1)
            output = model.model.get_image_features(pixels, sizes, batch_num_images=number)
            return output.pooler_output[0], []
        tokens = super().encode(model, visual)[0]
        if len(tokens) == 16:  # before 5.22 the newline is added later
            tokens = torch.cat([tokens, model.model.image_newline[None]])
        return tokens, []


class VideoLlava(Case):
    name, model_class = "video_llava", VideoLlavaForConditionalGeneration
    layouts = ("single", "ragged", "video", "mixed")
    pixels: ClassVar = {"image": "pixel_values_images", "video": "pixel_values_videos"}

    def config(self):
        return VideoLlavaConfig(
            vision_config=clip_tower(32),
            text_config=llama(),
            image_token_index=IMAGE,
            video_token_index=VIDEO,
        )

    def image(self, seed):
        return grid("image", "image", 4, 4, noise(1, 3, 32, 32, seed=seed))

    def video(self, seed):
        """Each frame's class token comes first and stays with its frame."""
        tokens = []
        for frame in range(3):
            tokens += [Token(None, line=frame)] + [Token(frame, line=frame)] * 16
        return Visual("video", noise(1, 3, 3, 32, 32, seed=seed), [("frame", (4, 4))] * 3, tokens, [51])

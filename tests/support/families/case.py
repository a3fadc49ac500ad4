"""What the tests say about a family: a tiny model of the real class, prompts for it, and what its placeholders mean.

Everything that the package has to find out is written down here by hand, or worked out one token at a time.
"""

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from transformers import CLIPVisionConfig, LlamaConfig, SiglipVisionConfig

from tests.support.tiny_llava import loud

VOCAB, WIDTH, TOWER, PATCH = 96, 32, 24, 8
PAD, BOS, END, IMAGE, VIDEO, OPEN, CLOSE = range(7)
FIRST_WORD, LAST = 10, VOCAB - 1
ATTENTION = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
TEXT = {**ATTENTION, "intermediate_size": 48, "vocab_size": VOCAB, "max_position_embeddings": 512}
SPECIAL = {"pad_token_id": PAD, "bos_token_id": BOS, "eos_token_id": END}


@dataclass(frozen=True)
class Token:
    """One placeholder. `part` numbers the tile or frame of a candidate and is None for structure.

    Structure stays while a candidate of its `line` stays, always if it has none. `offset` is the place in the
    (time, row, column) grid of models that have such positions.
    """

    part: int | None
    line: int | None = None
    offset: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, eq=False)
class Visual:
    """One image or video: its pixels, its parts as (name, grid), its placeholders in runs of the given lengths.

    `size` is what the family passes beside the pixels. `advance` is how far a run moves the position of later text.
    """

    kind: str
    pixels: torch.Tensor
    parts: list[tuple[str, tuple[int, int]]]
    tokens: list[Token]
    runs: list[int]
    size: tuple = ()
    advance: int = 0

    @property
    def candidates(self):
        return [i for i, token in enumerate(self.tokens) if token.part is not None]

    @property
    def members(self):
        """The candidates' numbers of each part."""
        owners = [token.part for token in self.tokens if token.part is not None]
        return [[i for i, owner in enumerate(owners) if owner == part] for part in range(len(self.parts))]

    @property
    def structure(self):
        return len(self.tokens) - len(self.candidates)

    def staying(self, kept):
        """Which placeholders stay when these candidates do."""
        chosen = {self.candidates[i] for i in kept}
        lines = {self.tokens[i].line for i in chosen}
        bound = [token.part is None and (token.line is None or token.line in lines) for token in self.tokens]
        return [i for i, stays in enumerate(bound) if stays or i in chosen]


@dataclass(frozen=True, eq=False)
class Sample:
    """One row without padding: its token ids, and its images and videos in reading order."""

    ids: list[int]
    visuals: list[Visual] = field(default_factory=list)


def quiet_ends(model):
    """No placeholder is ever the best next token, nor is the end."""
    with torch.no_grad():
        model.lm_head.weight[:FIRST_WORD] = 0
        model.lm_head.weight[LAST] = 0
    return model


def words(count, seed):
    generator = torch.Generator().manual_seed(1000 + seed)
    return torch.randint(FIRST_WORD, LAST, (count,), generator=generator).tolist()


def noise(*shape, seed):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def grid(kind, name, rows, columns, pixels, count=1, **more):
    """A visual of `count` equal parts and no structure."""
    tokens = [Token(part) for part in range(count) for _ in range(rows * columns)]
    return Visual(kind, pixels, [(name, (rows, columns))] * count, tokens, [len(tokens)], **more)


def clip_tower(size):
    sizes = {"hidden_size": TOWER, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 2}
    return CLIPVisionConfig(**sizes, image_size=size, patch_size=PATCH, projection_dim=16)


def siglip_tower(size):
    sizes = {"hidden_size": TOWER, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    return SiglipVisionConfig(**sizes, image_size=size, patch_size=PATCH, vision_use_head=False)


def llama():
    return LlamaConfig(**TEXT, **SPECIAL)


def flat(features):
    """(tokens, d) from the tensor, list or tuple that a model gives for one image or video."""
    pieces = features if isinstance(features, (list, tuple)) else [features]
    return torch.cat([piece.reshape(-1, piece.shape[-1]) for piece in pieces])


class Case:
    """One family. Subclasses say how to build the model, an image and a video, and how tensors are handed over."""

    name: str
    model_class: type
    layouts = ("single", "ragged")
    positions = ("renumbered", "original")
    decoder = "language_model"
    pixels: ClassVar = {"image": "pixel_values", "video": "pixel_values_videos"}
    placeholders: ClassVar = {"image": IMAGE, "video": VIDEO}
    special = frozenset({PAD, BOS, END, LAST})

    def config(self):
        raise NotImplementedError

    def image(self, seed):
        raise NotImplementedError

    def video(self, seed):
        raise NotImplementedError

    def model(self):
        model = self.model_class._from_config(self.config(), attn_implementation="sdpa")
        model = quiet_ends(loud(model, seed=0))
        model.generation_config.pad_token_id = PAD
        model.generation_config.bos_token_id = BOS
        model.generation_config.eos_token_id = LAST
        return model

    # --- prompts ---

    def spelled(self, visual):
        """The ids that stand for an image or video in the prompt."""
        return [self.placeholders[visual.kind]] * len(visual.tokens)

    def sample(self, *pieces, first=True):
        """A row of numbers of words and visuals."""
        ids, visuals = [BOS] if first else [], []
        for number, piece in enumerate(pieces):
            if isinstance(piece, Visual):
                visuals.append(piece)
                ids += self.spelled(piece)
            else:
                ids += words(piece, seed=100 * number + piece)
        return Sample(ids, visuals)

    def samples(self, layout):
        if layout == "single":
            return [self.sample(3, self.image(0), 6)]
        if layout == "ragged":
            return [
                self.sample(2, self.image(1), 5),
                self.sample(4, self.image(2), 3, self.image(3), 7),
                self.sample(self.image(4), 4),
            ]
        if layout == "video":
            return [self.sample(3, self.video(5), 5), self.sample(self.video(6), 8)]
        if layout == "mixed":
            return [self.sample(2, self.image(7), 4, self.video(8), 5)]
        raise ValueError(layout)

    def batch(self, samples):
        """What a processor would hand to the model: left-padded, with all images of all rows one after another."""
        width = max(len(sample.ids) for sample in samples)
        ids = torch.tensor([[PAD] * (width - len(sample.ids)) + sample.ids for sample in samples])
        mask = torch.tensor([[0] * (width - len(sample.ids)) + [1] * len(sample.ids) for sample in samples])
        return {"input_ids": ids, "attention_mask": mask, **self.companions(ids), **self.tensors(samples)}

    def companions(self, ids):
        """Inputs of the prompt's own shape."""
        return {}

    def tensors(self, samples):
        """Inputs that carry the images and videos."""
        given = {}
        for kind, name in self.pixels.items():
            pixels = [visual.pixels for sample in samples for visual in sample.visuals if visual.kind == kind]
            if pixels:
                given[name] = torch.cat(pixels)
        return given

    # --- the reference's pieces ---

    def encode(self, model, visual):
        """(tokens (n, d), further levels of them) of one image or video alone."""
        encoder = model.model.get_image_features if visual.kind == "image" else model.model.get_video_features
        return flat(encoder(visual.pixels).pooler_output), []

    def blocks(self, sample, start):
        """For each id, the name of the block that attends to itself in both directions, or None.

        `start` counts the tokens before this sample.
        """
        return [None] * len(sample.ids)

    def states(self, model, prompt, places):
        """Hidden states (S, d) of a whole sequence: no cache, no padding."""
        ones = torch.ones(1, len(prompt.ids), dtype=torch.long)
        output = getattr(model.model, self.decoder)(
            inputs_embeds=torch.stack(prompt.vectors)[None],
            position_ids=torch.tensor(places)[None],
            attention_mask=ones,
            use_cache=False,
        )
        return output.last_hidden_state[0]

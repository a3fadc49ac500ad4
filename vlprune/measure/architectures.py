"""Real-size models without a checkpoint: the architectures of published models, with random weights.

What they answer means nothing; what they cost is what the real ones cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

LLAMA_7B = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 32,
    "vocab_size": 32064,
    "max_position_embeddings": 4096,
}
LLAMA_13B = LLAMA_7B | {
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "num_key_value_heads": 40,
}
QWEN2_7B = {
    "hidden_size": 3584,
    "intermediate_size": 18944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "vocab_size": 152064,
    "max_position_embeddings": 32768,
}
CLIP_LARGE_336 = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 336,
    "patch_size": 14,
    "projection_dim": 768,
}
CLIP_LARGE_TEXT = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "projection_dim": 768,
}
SIGLIP_SO400M = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
    "patch_size": 14,
    "vision_use_head": False,
}
NEXT_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]


@dataclass(frozen=True)
class Architecture:
    """A published model: `config()` is its configuration, `pixels()` the visual inputs of one prompt.

    `visual` says what they are, `tokens` how many placeholders they take, and `placeholder` their token id.
    """

    name: str
    visual: str
    tokens: int
    placeholder: int
    config: Callable[[], Any]
    pixels: Callable[[], dict[str, Tensor]]

    def build(self, device: str = "cpu", dtype: torch.dtype = torch.bfloat16) -> Any:
        """The model with random weights, for inference."""
        from transformers import AutoModelForImageTextToText

        with torch.device(device):
            model = AutoModelForImageTextToText.from_config(self.config(), dtype=dtype, attn_implementation="sdpa")
        model.generation_config.pad_token_id = 0
        return model.eval()

    def inputs(self, model: Any, text: int = 64, batch: int = 1) -> dict[str, Tensor]:
        """A prompt of `text` words, in front of and behind the visual tokens, `batch` times."""
        ids = torch.randint(1000, 30000, (1, text), generator=torch.Generator().manual_seed(0)).repeat(batch, 1)
        front = text // 2
        visual = torch.full((batch, self.tokens), self.placeholder)
        ids = torch.cat([ids[:, :front], visual, ids[:, front:]], dim=1)
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        for name, value in self.pixels().items():
            value = torch.cat([value] * batch)
            inputs[name] = value.to(model.dtype) if value.is_floating_point() else value
        if "image_grid_thw" in inputs:
            inputs["mm_token_type_ids"] = (ids == self.placeholder).int()
        return {name: value.to(model.device) for name, value in inputs.items()}


def _noise(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


class WordTokenizer:
    """A number for each word, the same every time: random weights know no words, but cost what they cost.

    >>> tokens = WordTokenizer(vocabulary=1000, bos=998, eos=999)
    >>> ids = tokens("a cat or a dog", add_special_tokens=False)["input_ids"]
    >>> len(ids), ids[0] == ids[3], max(ids) < 998
    (5, True, True)
    """

    def __init__(self, vocabulary: int, bos: int, eos: int) -> None:
        self._words = min(vocabulary, bos, eos)
        self.bos_token_id, self.eos_token_id, self.pad_token_id = bos, eos, eos

    def __call__(self, text: str, add_special_tokens: bool = False) -> dict[str, list[int]]:
        return {"input_ids": [crc32(word.encode()) % self._words for word in text.split()]}


def build_text_tower(model: Any) -> tuple[Any, WordTokenizer]:
    """CLIP ViT-L/14's text tower with random weights, and a tokenizer: a `dual_encoder=` for a LLaVA with CLIP's tower.

    Of the image side it has the projection into the shared space, and no layers, as `attach` uses none.
    """
    from transformers import CLIPConfig, CLIPModel, CLIPTextConfig, CLIPVisionConfig

    text = CLIPTextConfig(**CLIP_LARGE_TEXT)
    vision = CLIPVisionConfig(**{**model.config.vision_config.to_dict(), "num_hidden_layers": 0})
    config = CLIPConfig(
        text_config=text.to_dict(), vision_config=vision.to_dict(), projection_dim=CLIP_LARGE_TEXT["projection_dim"]
    )
    with torch.device(model.device):
        encoder = CLIPModel(config).to(model.dtype).eval()
    return encoder, WordTokenizer(text.vocab_size, text.bos_token_id, text.eos_token_id)


def _llava(llm: dict[str, int]) -> Callable[[], Any]:
    def config() -> Any:
        from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig

        return LlavaConfig(
            vision_config=CLIPVisionConfig(**CLIP_LARGE_336), text_config=LlamaConfig(**llm), image_token_index=32000
        )

    return config


def _next(llm: dict[str, int]) -> Callable[[], Any]:
    def config() -> Any:
        from transformers import CLIPVisionConfig, LlamaConfig, LlavaNextConfig

        return LlavaNextConfig(
            vision_config=CLIPVisionConfig(**CLIP_LARGE_336),
            text_config=LlamaConfig(**llm),
            image_token_index=32000,
            image_grid_pinpoints=NEXT_PINPOINTS,
        )

    return config


def _onevision(image_size: int) -> Callable[[], Any]:
    def config() -> Any:
        from transformers import LlavaOnevisionConfig, Qwen2Config, SiglipVisionConfig

        return LlavaOnevisionConfig(
            vision_config=SiglipVisionConfig(**SIGLIP_SO400M, image_size=image_size),
            text_config=Qwen2Config(**QWEN2_7B),
        )

    return config


def _internvl() -> Any:
    from transformers import InternVLConfig, InternVLVisionConfig, Qwen2Config

    vision = InternVLVisionConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=16, image_size=[448, 448]
    )
    text = Qwen2Config(**QWEN2_7B)
    return InternVLConfig(vision_config=vision, text_config=text, image_token_id=151667, tie_word_embeddings=False)


def _qwen() -> Any:
    from transformers import Qwen2_5_VLConfig

    vision = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584}
    rope = {"rope_type": "default", "mrope_section": [16, 24, 24], "rope_theta": 1000000.0}
    return Qwen2_5_VLConfig(vision_config=vision, text_config={**QWEN2_7B, "rope_parameters": rope})


ARCHITECTURES = [
    *(
        Architecture(
            f"llava-1.5-{size}",
            "one image of 336x336",
            576,
            32000,
            _llava(llm),
            lambda: {"pixel_values": _noise(1, 3, 336, 336)},
        )
        for size, llm in (("7b", LLAMA_7B), ("13b", LLAMA_13B))
    ),
    *(
        Architecture(
            f"llava-next-{size}",
            "one image of 672x672: 5 tiles and 48 newlines",
            2928,
            32000,
            _next(llm),
            lambda: {"pixel_values": _noise(1, 5, 3, 336, 336), "image_sizes": torch.tensor([[672, 672]])},
        )
        for size, llm in (("7b", LLAMA_7B), ("13b", LLAMA_13B))
    ),
    Architecture(
        "llava-onevision-7b",
        "a video of 64 frames of 196 tokens, and a newline",
        64 * 196 + 1,
        151647,
        _onevision(384),
        lambda: {"pixel_values_videos": _noise(1, 64, 3, 384, 384)},
    ),
    Architecture(
        "llava-video-7b",
        "a video of 64 frames of 169 tokens, and a newline",
        64 * 169 + 1,
        151647,
        _onevision(364),  # 26 x 26 patches, pooled to the 13 x 13 of LLaVA-Video
        lambda: {"pixel_values_videos": _noise(1, 64, 3, 364, 364)},
    ),
    Architecture(
        "internvl3-8b",
        "one image of 896x896: 4 tiles and a thumbnail of 256 tokens",
        1280,
        151667,
        _internvl,
        lambda: {"pixel_values": _noise(5, 3, 448, 448)},
    ),
    Architecture(
        "qwen2.5-vl-7b",
        "one image of 1008x1008",
        1296,
        151655,
        _qwen,
        lambda: {"pixel_values": _noise(5184, 1176), "image_grid_thw": torch.tensor([[1, 72, 72]])},
    ),
]


def get_architecture(name: str) -> Architecture:
    """The architecture of that name.

    >>> get_architecture("llava-1.5-7b").tokens
    576
    >>> get_architecture("llava-1.5")
    Traceback (most recent call last):
    ...
    ValueError: name='llava-1.5': no such architecture; did you mean 'llava-1.5-7b'?
    """
    known = {one.name: one for one in ARCHITECTURES}
    if name not in known:
        near = get_close_matches(name, known, n=1, cutoff=0.0)[0]
        raise ValueError(f"name={name!r}: no such architecture; did you mean {near!r}?")
    return known[name]

"""Operations by formula, from a model's config alone. Every figure has a convention: see `CONVENTIONS`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

CONVENTIONS = {
    "flops": (
        "floating-point operations, two per multiply-add, of the LLM's matrix products: all tokens (visual, text and "
        "new), attention in full (not halved for causality), one row of logits a step; vision tower and projector apart"
    ),
    "paper": (
        "multiply-adds over the visual tokens alone, T(4nd² + 2n²d + 3ndm), as papers on token pruning count; "
        "half of what they call FLOPs where they count two per multiply-add (Script: its efficiency table)"
    ),
}

#: Decoders whose layers are q, k, v, o projections and a gated MLP of three products; tests check each of them against
#: torch's counter.
GATED = (
    *("llama", "mistral", "qwen2", "qwen3", "gemma", "phi3"),
    *("qwen2_vl_text", "qwen2_5_vl_text", "qwen3_vl_text"),
)


@dataclass(frozen=True)
class LLMShape:
    """The sizes of a decoder that its cost follows from.

    >>> vicuna = LLMShape(layers=32, width=4096, inner=11008, heads=32, kv_heads=32, head_width=128, vocabulary=32064)
    >>> vicuna.kv_values_per_token
    262144
    """

    layers: int
    width: int
    inner: int
    heads: int
    kv_heads: int
    head_width: int
    vocabulary: int

    @classmethod
    def of(cls, model: Any) -> LLMShape:
        """The shape of a model, of its config, or of its text config.

        >>> from transformers import LlamaConfig
        >>> LLMShape.of(LlamaConfig(num_attention_heads=32, num_key_value_heads=8)).kv_heads
        8
        """
        if isinstance(model, LLMShape):
            return model
        config = _text_config(model)
        kind = getattr(config, "model_type", type(config).__name__)
        if not cls.knows(model):
            raise ValueError(f"model has a {kind!r} decoder: its operations are known for {', '.join(GATED)}.")
        heads = config.num_attention_heads
        return cls(
            layers=config.num_hidden_layers,
            width=config.hidden_size,
            inner=config.intermediate_size,
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_width=getattr(config, "head_dim", None) or config.hidden_size // heads,
            vocabulary=config.vocab_size,
        )

    @staticmethod
    def knows(model: Any) -> bool:
        """Whether the model's kind of decoder has a formula here."""
        return isinstance(model, LLMShape) or getattr(_text_config(model), "model_type", None) in GATED

    @property
    def kv_values_per_token(self) -> int:
        """Numbers that one token adds to the cache."""
        return 2 * self.layers * self.kv_heads * self.head_width

    def layer(self, tokens: int, context: int) -> int:
        """Operations of one layer for `tokens` new tokens that attend to `context` ones (themselves included)."""
        query, key = self.heads * self.head_width, self.kv_heads * self.head_width
        projections = 2 * tokens * self.width * (2 * query + 2 * key)
        attention = 4 * tokens * context * query
        mlp = 6 * tokens * self.width * self.inner
        return projections + attention + mlp

    def forward(self, tokens: int, context: int) -> int:
        """Operations of one forward through all layers, and of one row of logits."""
        return self.layers * self.layer(tokens, context) + 2 * self.width * self.vocabulary


def _text_config(model: Any) -> Any:
    config = getattr(model, "config", model)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


@dataclass(frozen=True)
class Flops:
    """Operations of one `generate`: `prefill` gives the first new token, `decode` all later ones."""

    prefill: int
    decode: int
    convention: str = "flops"

    @property
    def total(self) -> int:
        return self.prefill + self.decode


def llm_flops(model: Any, prompt: int | Sequence[int], new_tokens: int = 1, *, batch: int = 1) -> Flops:
    """What the LLM computes for a prompt of `prompt` tokens, text and visual, and `new_tokens` greedy or sampled ones.

    `model` is a model, its config or an `LLMShape`. Where tokens are dropped inside the LLM, `prompt` is what each
    layer sees of it. Convention "flops" (see `CONVENTIONS`).

    >>> vicuna = LLMShape(layers=32, width=4096, inner=11008, heads=32, kv_heads=32, head_width=128, vocabulary=32064)
    >>> full, pruned = llm_flops(vicuna, 576 + 64), llm_flops(vicuna, 64 + 64)
    >>> f"{full.prefill / 1e12:.2f} T, {pruned.prefill / 1e12:.2f} T"
    '8.50 T, 1.67 T'
    """
    shape = LLMShape.of(model)
    prompts = _of_each_layer("prompt", prompt, shape)
    for name, value in (("prompt", min(prompts)), ("new_tokens", new_tokens), ("batch", batch)):
        if value < 1:
            raise ValueError(f"{name}={value}: must be at least 1.")
    logits = 2 * shape.width * shape.vocabulary
    decode = sum(logits + sum(shape.layer(1, one + step) for one in prompts) for step in range(1, new_tokens))
    return Flops(prefill=batch * (logits + sum(shape.layer(one, one) for one in prompts)), decode=batch * decode)


def _of_each_layer(name: str, tokens: int | Sequence[int], shape: LLMShape) -> list[int]:
    """The number of tokens that each layer sees, where one number stands for all of them."""
    found = [tokens] * shape.layers if isinstance(tokens, int) else list(tokens)
    if len(found) != shape.layers:
        raise ValueError(f"{name} has {len(found)} entries, but the LLM has {shape.layers} layers.")
    return found


def paper_macs(model: Any, visual_tokens: int | Sequence[int]) -> int:
    """The count that papers quote: convention "paper" (see `CONVENTIONS`), k and v projections in their own size.

    Where tokens are dropped inside the LLM, `visual_tokens` are those that each layer sees.

    >>> vicuna = LLMShape(layers=32, width=4096, inner=11008, heads=32, kv_heads=32, head_width=128, vocabulary=32064)
    >>> f"{paper_macs(vicuna, 576) / 1e12:.2f} T, {paper_macs(vicuna, 2880) / 1e12:.2f} T"
    '3.82 T, 20.83 T'
    """
    shape = LLMShape.of(model)
    tokens = _of_each_layer("visual_tokens", visual_tokens, shape)
    if min(tokens) < 0:
        raise ValueError(f"visual_tokens={min(tokens)}: must not be negative.")
    return sum(shape.layer(one, one) for one in tokens) // 2


def vision_flops(model: Any) -> int:
    """Operations, two per multiply-add, of a LLaVA's CLIP or SigLIP tower and projector for one image.

    All the tower's layers count, as transformers runs them all, also when an earlier layer's states are read.

    >>> from transformers import LlavaConfig
    >>> f"{vision_flops(LlavaConfig()) / 1e12:.2f} T"   # ViT-L/14 at 336 pixels, and the projector of LLaVA-1.5-7B
    '0.41 T'
    """
    config = getattr(model, "config", model)
    tower = config.vision_config
    if tower.model_type not in ("clip_vision_model", "siglip_vision_model"):
        raise ValueError(f"model has a {tower.model_type!r} tower: operations are known for CLIP and SigLIP.")
    width, inner = tower.hidden_size, tower.intermediate_size
    patches = (tower.image_size // tower.patch_size) ** 2
    clip = tower.model_type == "clip_vision_model"
    tokens = patches + 1 if clip else patches
    layer = 8 * tokens * width**2 + 4 * tokens**2 * width + 4 * tokens * width * inner
    total = 2 * patches * tower.num_channels * tower.patch_size**2 * width + tower.num_hidden_layers * layer
    if not clip and getattr(tower, "vision_use_head", True):  # one learnt query attends to all patches, then an MLP
        total += 4 * (tokens + 1) * width**2 + 4 * tokens * width + 4 * width * inner
    layers = config.vision_feature_layer
    read = width * (1 if isinstance(layers, int) else len(layers))
    visual = patches if config.vision_feature_select_strategy == "default" or not clip else tokens
    hidden = config.get_text_config().hidden_size
    return total + 2 * visual * hidden * (read + hidden)

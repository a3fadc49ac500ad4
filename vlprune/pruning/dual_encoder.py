"""Text and image in one space: the CLIP or SigLIP that a model was built on, for relevance."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vlprune.devices import copy_to_device, input_device

#: The published dual encoder that a vision tower comes from, by the tower's type, width, patch size and image size.
TEXT_TWINS = {
    ("clip_vision_model", 1024, 14, 336): "openai/clip-vit-large-patch14-336",  # LLaVA-1.5, LLaVA-NeXT
    ("siglip_vision_model", 1152, 14, 384): "google/siglip-so400m-patch14-384",  # LLaVA-OneVision
}


class DualEncoder:
    """A text tower and an image tower that share a space: relevance as CLIP or SigLIP see it.

    The image side is `visual_projection(post_layernorm(h))` of the hidden states `h` that the multimodal
    model's own tower has just computed; the tower of the dual encoder is not run. The text side is, by `pooling`,
    "auto": the mean of the `text_embeds` of the question's chunks, each as long as the text tower can read; or "mean":
    that of the projected states of all its words, without the tokens that begin, end and fill a chunk.
    """

    def __init__(self, encoder: Any, tokenizer: Any, model: Any, pooling: str = "auto") -> None:
        self.encoder, self.tokenizer, self.pooling = encoder, tokenizer, pooling
        vision = getattr(encoder.config, "vision_config", None)
        if vision is None or not hasattr(encoder, "get_text_features"):
            raise TypeError(f"dual_encoder is a {type(encoder).__name__}: pass a CLIPModel or a SiglipModel.")
        tower = model.config.vision_config
        if vision.hidden_size != tower.hidden_size:
            raise ValueError(
                f"dual_encoder {type(encoder).__name__} has a vision tower of width {vision.hidden_size}, "
                f"but the tower of {type(model).__name__} has {tower.hidden_size}: "
                "pass the encoder that the model was built on."
            )
        trained_on = getattr(encoder.config, "tower_type", vision.model_type)  # a text tower made for another's tower
        if trained_on != tower.model_type:
            raise ValueError(
                f"dual_encoder {type(encoder).__name__} has a {trained_on!r} tower, but that of "
                f"{type(model).__name__} is a {tower.model_type!r}: pass the encoder that it was built on, or none."
            )
        self._siglip = str(encoder.config.model_type).startswith("siglip")
        self._length = int(encoder.config.text_config.max_position_embeddings)
        self._begins = not self._siglip and tokenizer.bos_token_id is not None  # whether a chunk has a first token
        if tokenizer.eos_token_id is None:
            raise ValueError("dual_encoder: its tokenizer has no end-of-text token.")
        self.embed_one: Callable[[Any, list[int]], Tensor | None] = clip_text
        self._by_parts = not self._siglip and _parts_agree(encoder, self.chunks("a")[0])

    @property
    def sign(self) -> int:
        """−1 for CLIP, +1 for others, or what the encoder's config says in `relevance_sign`."""
        default = -1 if self.encoder.config.model_type == "clip" else 1
        return int(getattr(self.encoder.config, "relevance_sign", default))

    @torch.no_grad()
    def image(self, states: Tensor) -> Tensor:
        """(B, n, d_v) hidden states of the tower -> (B, n, c) in the shared space, on the states' device.

        Where a projector reads several layers side by side, the last one counts.
        """
        norm = self.encoder.vision_model.post_layernorm
        states = states[..., -norm.weight.shape[0] :]
        project = getattr(self.encoder, "visual_projection", torch.nn.Identity())
        return project(norm(states.to(norm.weight.device, norm.weight.dtype))).to(states.device)

    def chunks(self, text: str) -> list[list[int]]:
        """The token ids of the text, in pieces that the text tower can read, each with its own begin and end."""
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        end = [self.tokenizer.eos_token_id]
        begin = [self.tokenizer.bos_token_id] if self._begins else []
        size = self._length - len(begin) - len(end)
        return [begin + ids[i : i + size] + end for i in range(0, max(len(ids), 1), size)]

    @torch.no_grad()
    def text(self, texts: Sequence[str]) -> Tensor:
        """(B, 1, c): each text's mean over its chunks' text embeddings, or over its words' states, in float32."""
        chunks = [self.chunks(text) for text in texts]
        flat = [chunk for pieces in chunks for chunk in pieces]
        if len(flat) == 1 and self._by_parts and not self.encoder.training and self.pooling == "auto":
            embeds = self.embed_one(self.encoder, flat[0])
            if embeds is not None:
                return embeds.float()[None]
        width = self._length if self._siglip else max(map(len, flat))
        pad = self.tokenizer.pad_token_id
        pad = self.tokenizer.eos_token_id if pad is None else pad
        device = self.encoder.device
        ids = copy_to_device(torch.tensor([chunk + [pad] * (width - len(chunk)) for chunk in flat]), device)
        mask = copy_to_device(torch.tensor([[1] * len(chunk) + [0] * (width - len(chunk)) for chunk in flat]), device)
        output = self.encoder.get_text_features(input_ids=ids, attention_mask=None if self._siglip else mask)
        counts = [len(pieces) for pieces in chunks]
        if self.pooling == "mean":
            return self._mean_of_words(output.last_hidden_state, flat, counts)
        embeds = getattr(output, "pooler_output", output).float()
        return torch.stack([part.mean(dim=0, keepdim=True) for part in embeds.split(counts)])

    def _mean_of_words(self, states: Tensor, chunks: list[list[int]], counts: list[int]) -> Tensor:
        """(B, 1, c) from the text tower's states (chunks, l, d): the mean over the words of each text's chunks."""
        project = self.encoder.text_model.head if self._siglip else self.encoder.text_projection
        first = 1 if self._begins else 0
        words = [project(row[first : len(chunk) - 1]).float() for row, chunk in zip(states, chunks)]
        means, start = [], 0
        for count in counts:
            means.append(torch.cat(words[start : start + count]).mean(dim=0, keepdim=True))
            start += count
        return torch.stack(means)


def clip_text(encoder: Any, ids: list[int]) -> Tensor | None:
    """(1, c) what `CLIPModel.get_text_features` gives for one text, by the parts of its text tower alone.

    A question has few tokens and a text tower few layers, so that much of that call is not arithmetic. None without an
    end token.
    """
    seen = up_to_end(encoder, ids)
    if seen is None:
        return None
    at = copy_to_device(torch.tensor([[*seen, len(seen) - 1]]), encoder.device)
    return clip_text_at_end(encoder, at)


def up_to_end(encoder: Any, ids: list[int]) -> list[int] | None:
    """The ids up to the end token, where the text is read: attention is causal. None without one."""
    config = encoder.config.text_config
    end = max(ids) if config.eos_token_id == 2 else config.eos_token_id  # transformers: 2 stands in old configs
    return ids[: ids.index(end) + 1] if end in ids else None


def clip_text_at_end(encoder: Any, given: Tensor) -> Tensor:
    """(1, c) from (1, l + 1): l token ids, whatever follows the end token among them, and the end token's place.

    The last layer is computed for the end token only, which is all that is read of it.
    """
    tower, heads_count = encoder.text_model, encoder.config.text_config.num_attention_heads
    ids, end = given[:, :-1], given[0, -1:]
    x = tower.embeddings.token_embedding(ids) + tower.embeddings.position_embedding.weight[: ids.shape[1]]
    before = (torch.arange(ids.shape[1], device=ids.device) <= end)[None, None, None]
    *layers, last = tower.encoder.layers

    def heads(values: Tensor) -> Tensor:
        return values.view(1, values.shape[1], heads_count, -1).transpose(1, 2)

    for layer in (*layers, last):
        attention = layer.self_attn
        h = layer.layer_norm1(x)
        keys, values = heads(attention.k_proj(h)), heads(attention.v_proj(h))
        options: dict[str, Any] = {"is_causal": True}
        if layer is last:
            h, x = h.index_select(1, end), x.index_select(1, end)
            options = {"attn_mask": before}
        attended = scaled_dot_product_attention(heads(attention.q_proj(h)), keys, values, **options)
        x = x + attention.out_proj(attended.transpose(1, 2).reshape(x.shape))
        x = x + layer.mlp(layer.layer_norm2(x))
    return encoder.text_projection(tower.final_layer_norm(x[:, 0]))


@torch.no_grad()
def _parts_agree(encoder: Any, ids: list[int]) -> bool:
    """Whether `clip_text` is this encoder's text tower: an unknown one need not have CLIP's parts."""
    try:
        got = clip_text(encoder, ids)
    except (AttributeError, TypeError, RuntimeError, ValueError):
        return False
    if got is None:
        return False
    whole = encoder.get_text_features(input_ids=torch.tensor([ids], device=encoder.device))
    want = getattr(whole, "pooler_output", whole)
    close = 0.02 if want.dtype in (torch.float16, torch.bfloat16) else 1e-4
    return got.shape == want.shape and bool((got - want).norm() <= close * want.norm())


def find_text_twin(model: Any) -> str:
    """The hub id of the dual encoder that the model's vision tower comes from; `ValueError` where none is known.

    >>> from types import SimpleNamespace
    >>> tower = SimpleNamespace(model_type="clip_vision_model", hidden_size=1024, patch_size=14, image_size=336)
    >>> find_text_twin(SimpleNamespace(config=SimpleNamespace(vision_config=tower)))
    'openai/clip-vit-large-patch14-336'
    """
    tower = getattr(model.config, "vision_config", None)
    kind, width, patch, size = (
        getattr(tower, name, None) for name in ("model_type", "hidden_size", "patch_size", "image_size")
    )
    for known, place in TEXT_TWINS.items():
        if known == (kind, width, patch, size):
            return place
    raise ValueError(
        f"dual_encoder='auto': no text twin is known of a {kind} of width {width} with patches of {patch} in {size} "
        "pixels; pass the CLIP or SigLIP that the model was built on, by id or path."
    )


def load_text_half(place: str, dtype: torch.dtype) -> Any:
    """The CLIP or SigLIP of that id or path, without its vision tower: of that, only the last norm is loaded.

    Weights of what is left out are not read. An encoder of another kind is loaded whole.
    """
    from transformers import AutoConfig, AutoModel, CLIPModel, SiglipModel

    config = AutoConfig.from_pretrained(place)
    whole: Any = {"clip": CLIPModel, "siglip": SiglipModel}.get(config.model_type)
    if whole is None:
        return AutoModel.from_pretrained(place, dtype=dtype, use_safetensors=True).eval()
    config.vision_config.num_hidden_layers, config.vision_config.vision_use_head = 0, False
    left_out = {"_keys_to_ignore_on_load_unexpected": [r"vision_model\.(encoder|head)\."]}
    half: Any = type(whole.__name__, (whole,), left_out)
    encoder = half.from_pretrained(place, config=config, dtype=dtype, use_safetensors=True).eval()
    encoder.vision_model.embeddings = torch.nn.Identity()
    return encoder


def load_dual_encoder(given: Any, model: Any, processor: Any, pooling: str = "auto") -> DualEncoder:
    """What the user passed as `dual_encoder=`: a model, a (model, tokenizer) pair, the id or path of one, or "auto".

    Of a model alone, the tokenizer is the processor's where their vocabularies have the same size, else the
    one that lies where the model was loaded from. "auto" is the one that `find_text_twin` names.
    """
    from transformers import AutoTokenizer

    if isinstance(given, str):
        place = find_text_twin(model) if given == "auto" else given
        encoder = load_text_half(place, model.dtype).to(input_device(model))
        return DualEncoder(encoder, AutoTokenizer.from_pretrained(place), model, pooling)
    if isinstance(given, tuple):
        encoder, tokenizer = given
        return DualEncoder(encoder, tokenizer, model, pooling)
    if not hasattr(given, "config"):
        raise TypeError(
            f"dual_encoder={given!r}: pass a CLIPModel, a (model, tokenizer) pair, an id or path, or 'auto'."
        )
    tokenizer = getattr(processor, "tokenizer", processor)
    if tokenizer is not None and len(tokenizer) == given.config.text_config.vocab_size:
        return DualEncoder(given, tokenizer, model, pooling)
    place = getattr(given.config, "_name_or_path", "")
    if not place:
        raise ValueError("dual_encoder has no tokenizer beside it: pass dual_encoder=(model, tokenizer).")
    return DualEncoder(given, AutoTokenizer.from_pretrained(place), model, pooling)

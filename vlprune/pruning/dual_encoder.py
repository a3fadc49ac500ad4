"""Text and image in one space: the CLIP or SigLIP that a model was built on, for relevance."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from vlprune.devices import copy_to_device


class DualEncoder:
    """A text tower and an image tower that share a space: relevance as CLIP or SigLIP see it.

    The image side is `visual_projection(post_layernorm(h))` of the hidden states `h` that the multimodal
    model's own tower has just computed; the tower of the dual encoder is not run. The text side is the mean
    of the `text_embeds` of the question's chunks, each as long as the text tower can read.
    """

    def __init__(self, encoder: Any, tokenizer: Any, model: Any) -> None:
        self.encoder, self.tokenizer = encoder, tokenizer
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
        self._siglip = str(encoder.config.model_type).startswith("siglip")
        self._length = int(encoder.config.text_config.max_position_embeddings)
        if tokenizer.eos_token_id is None:
            raise ValueError("dual_encoder: its tokenizer has no end-of-text token.")
        self._by_parts = not self._siglip and _parts_agree(encoder, self.chunks("a")[0])

    @property
    def sign(self) -> int:
        """−1 for CLIP, +1 for others, or what the encoder's config says in `relevance_sign`."""
        default = -1 if self.encoder.config.model_type == "clip" else 1
        return int(getattr(self.encoder.config, "relevance_sign", default))

    @torch.no_grad()
    def image(self, states: Tensor) -> Tensor:
        """(B, n, d_v) hidden states of the tower -> (B, n, c) in the shared space, on the states' device."""
        norm = self.encoder.vision_model.post_layernorm
        project = getattr(self.encoder, "visual_projection", torch.nn.Identity())
        return project(norm(states.to(norm.weight.device, norm.weight.dtype))).to(states.device)

    def chunks(self, text: str) -> list[list[int]]:
        """The token ids of the text, in pieces that the text tower can read, each with its own begin and end."""
        ids = list(self.tokenizer(text, add_special_tokens=False)["input_ids"])
        end = [self.tokenizer.eos_token_id]
        begin = [] if self._siglip or self.tokenizer.bos_token_id is None else [self.tokenizer.bos_token_id]
        size = self._length - len(begin) - len(end)
        return [begin + ids[i : i + size] + end for i in range(0, max(len(ids), 1), size)]

    @torch.no_grad()
    def text(self, texts: Sequence[str]) -> Tensor:
        """(B, 1, c): each text's mean over its chunks' text embeddings, in float32."""
        chunks = [self.chunks(text) for text in texts]
        flat = [chunk for pieces in chunks for chunk in pieces]
        if len(flat) == 1 and self._by_parts and not self.encoder.training:
            embeds = clip_text(self.encoder, flat[0])
            if embeds is not None:
                return embeds.float()[None]
        width = self._length if self._siglip else max(map(len, flat))
        pad = self.tokenizer.pad_token_id
        pad = self.tokenizer.eos_token_id if pad is None else pad
        device = self.encoder.device
        ids = copy_to_device(torch.tensor([chunk + [pad] * (width - len(chunk)) for chunk in flat]), device)
        mask = copy_to_device(torch.tensor([[1] * len(chunk) + [0] * (width - len(chunk)) for chunk in flat]), device)
        output = self.encoder.get_text_features(input_ids=ids, attention_mask=None if self._siglip else mask)
        embeds = getattr(output, "pooler_output", output).float()
        parts = embeds.split([len(pieces) for pieces in chunks])
        return torch.stack([part.mean(dim=0, keepdim=True) for part in parts])


def clip_text(encoder: Any, ids: list[int]) -> Tensor | None:
    """(1, c) what `CLIPModel.get_text_features` gives for one text, by the parts of its text tower alone.

    A question has few tokens and a text tower few layers, so that much of that call is not arithmetic. Here there are
    no masks, for one text has no padding, and the last layer is computed for the end token only, which is all that is
    read of it. None without an end token.
    """
    tower, config = encoder.text_model, encoder.config.text_config
    end = max(ids) if config.eos_token_id == 2 else config.eos_token_id  # transformers: 2 stands in old configs
    if end not in ids:
        return None
    ids = ids[: ids.index(end) + 1]  # what follows is not seen: attention is causal
    at = copy_to_device(torch.tensor([ids]), encoder.device)
    x = tower.embeddings.token_embedding(at) + tower.embeddings.position_embedding.weight[: len(ids)]
    *layers, last = tower.encoder.layers

    def heads(values: Tensor) -> Tensor:
        return values.view(1, values.shape[1], config.num_attention_heads, -1).transpose(1, 2)

    for layer in (*layers, last):
        attention = layer.self_attn
        h = layer.layer_norm1(x)
        keys, values = heads(attention.k_proj(h)), heads(attention.v_proj(h))
        if layer is last:
            h, x = h[:, -1:], x[:, -1:]
        seen = scaled_dot_product_attention(heads(attention.q_proj(h)), keys, values, is_causal=layer is not last)
        x = x + attention.out_proj(seen.transpose(1, 2).reshape(x.shape))
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


def load_dual_encoder(given: Any, model: Any, processor: Any) -> DualEncoder:
    """What the user passed as `dual_encoder=`: a model, a (model, tokenizer) pair, or the id or path of one.

    Of a model alone, the tokenizer is the processor's where their vocabularies have the same size, else the
    one that lies where the model was loaded from.
    """
    if isinstance(given, str):
        from transformers import AutoModel, AutoTokenizer

        encoder = AutoModel.from_pretrained(given, dtype=model.dtype).to(model.device).eval()
        return DualEncoder(encoder, AutoTokenizer.from_pretrained(given), model)
    if isinstance(given, tuple):
        encoder, tokenizer = given
        return DualEncoder(encoder, tokenizer, model)
    if not hasattr(given, "config"):
        raise TypeError(f"dual_encoder={given!r}: pass a CLIPModel, a (model, tokenizer) pair, or an id or path.")
    tokenizer = getattr(processor, "tokenizer", processor)
    if tokenizer is not None and len(tokenizer) == given.config.text_config.vocab_size:
        return DualEncoder(given, tokenizer, model)
    place = getattr(given.config, "_name_or_path", "")
    if not place:
        raise ValueError("dual_encoder has no tokenizer beside it: pass dual_encoder=(model, tokenizer).")
    from transformers import AutoTokenizer

    return DualEncoder(given, AutoTokenizer.from_pretrained(place), model)

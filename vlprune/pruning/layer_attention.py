"""A few rows of a decoder layer's attention, computed from queries and keys, whatever the attention implementation."""

import sys
from typing import Any

import torch
from torch import Tensor

from vlprune.errors import UnsupportedModel

#: So many rows at a time, for the memory's sake.
CHUNK = 64


def check_decoder(model: Any) -> None:
    """Raise `UnsupportedModel` unless the decoder is one whose attention `attention_rows` and a cut can follow."""
    decoder = model.get_decoder()
    config, name = decoder.config, type(model).__name__
    layers = list(getattr(decoder, "layers", []))
    if len(layers) < 2 or not hasattr(decoder, "rotary_emb"):
        raise UnsupportedModel(f"model is a {name}, whose decoder has no layers to drop tokens between.")
    if len({weight.device for weight in decoder.parameters()}) > 1:
        raise UnsupportedModel(f"model is a {name} spread over devices: tokens can be dropped before its LLM only.")
    types = getattr(config, "layer_types", None)
    window = getattr(config, "sliding_window", None) if types is None else None
    if window is not None or set(types or ()) - {"full_attention"}:
        raise UnsupportedModel(
            f"model is a {name} with sliding-window layers: tokens can be dropped before its LLM only."
        )
    if hasattr(type(model), "create_masks_for_generate"):
        raise UnsupportedModel(f"model is a {name} with masks of its own: tokens can be dropped before its LLM only.")
    for layer in layers:
        attention = getattr(layer, "self_attn", None)
        if (
            not all(hasattr(attention, part) for part in ("q_proj", "k_proj", "head_dim", "scaling"))
            or not hasattr(layer, "input_layernorm")
            or not hasattr(sys.modules[type(attention).__module__], "apply_rotary_pos_emb")
            or getattr(config, "attn_logit_softcapping", None) is not None
        ):
            raise UnsupportedModel(
                f"model is a {name}, whose attention vlprune cannot compute anew: "
                "tokens can be dropped before its LLM only."
            )


@torch.no_grad()
def attention_rows(
    layer: Any, hidden: Tensor, rotary: tuple[Tensor, Tensor], columns: Tensor, visible: Tensor, held: Tensor | None
) -> Tensor:
    """(B, T, S) in float32: what the tokens at `columns` (B, T) attend to, mean over the heads.

    `hidden` (B, S, d) are the states that enter `layer`, `rotary` their position embeddings. `visible` (B, P + S) is
    True for tokens that are no padding. `held` are the keys (B, heads, P, d_h) that a cache holds of `P` earlier
    tokens, which take part in the softmax and are not returned, or (B, heads, P + S, d_h), with those of `hidden`, if
    the layer has already seen them.
    """
    attention = layer.self_attn
    rotate = sys.modules[type(attention).__module__].apply_rotary_pos_emb
    rows = torch.arange(len(hidden), device=hidden.device)[:, None]
    cos, sin = (part.expand(len(hidden), -1, -1) for part in rotary)

    def headed(project: Any, norm: Any, states: Tensor) -> Tensor:
        states = layer.input_layernorm(states)
        values = project(states).view(*states.shape[:2], -1, attention.head_dim)
        return (values if norm is None else norm(values)).transpose(1, 2)

    keys = held
    if keys is None or keys.shape[2] < visible.shape[1]:
        keys = headed(attention.k_proj, getattr(attention, "k_norm", None), hidden)
        keys, _ = rotate(keys, keys, cos, sin)
        if held is not None:
            keys = torch.cat([held.to(keys), keys], dim=2)
    before = keys.shape[2] - hidden.shape[1]
    place = torch.arange(keys.shape[2], device=hidden.device)
    found = []
    for part in columns.split(CHUNK, dim=1):
        query = headed(attention.q_proj, getattr(attention, "q_norm", None), hidden[rows, part])
        query, _ = rotate(query, query, cos[rows, part], sin[rows, part])
        query = query.unflatten(1, (keys.shape[1], -1))  # (B, key heads, queries of each, T, d_h)
        logits = query.float() @ keys.float()[:, :, None].transpose(-1, -2) * attention.scaling
        seen = visible[:, None] & (place <= before + part[..., None])
        logits = logits.masked_fill(~seen[:, None, None], -torch.inf)
        found.append(logits.softmax(dim=-1).mean(dim=(1, 2))[..., before:])
    return torch.cat(found, dim=1)

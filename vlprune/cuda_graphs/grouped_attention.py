"""Attention within each of many short sequences: one call for all of a length, where transformers makes one for each.

A tower of patches attends within images, or within windows of 8 x 8 patches, of which a large image has a hundred. As a
graph that is a hundred small kernels a layer, one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

#: Its name in transformers. Only what has "flash" in it gets all sequences at once, and their lengths.
NAME = "vlprune_flash_grouped"


@contextmanager
def grouped_attention(config: Any) -> Iterator[None]:
    """Inside, layers of this config that would run sdpa attend so; what they call lengths must be on the host."""
    from transformers import AttentionInterface

    AttentionInterface.register(NAME, attend_grouped)
    before = config._attn_implementation
    config._attn_implementation = NAME
    try:
        yield
    finally:
        config._attn_implementation = before


def attend_grouped(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    cu_seq_lens_q: Tensor,
    scaling: float,
    dropout: float = 0.0,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attention of query, key and value (1, heads, n, d) within sequences that begin and end at `cu_seq_lens_q`.

    Returns (1, n, heads, d), by the kernel that sdpa takes for one sequence.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    lengths = cu_seq_lens_q.diff().tolist()
    found: list[Any] = [None] * len(lengths)
    for length in dict.fromkeys(lengths):
        places = [place for place, one in enumerate(lengths) if one == length]
        same = [_take(states, lengths, places) for states in (query, key, value)]
        out, _ = sdpa_attention_forward(module, *same, None, dropout=dropout, scaling=scaling, is_causal=False)
        if len(places) == len(lengths):
            return out.reshape(1, -1, *out.shape[2:]), None
        for place, one in zip(places, out.split(1)):
            found[place] = one
    return torch.cat(found, dim=1), None


def _take(states: Tensor, lengths: list[int], places: list[int]) -> Tensor:
    """Sequences of one length out of (1, heads, n, d), as (sequences, heads, length, d); all of them without a copy."""
    if len(places) == len(lengths):
        return states[0].unflatten(1, (len(lengths), lengths[0])).transpose(0, 1)
    parts = states.split(lengths, dim=2)
    return torch.cat([parts[place] for place in places])

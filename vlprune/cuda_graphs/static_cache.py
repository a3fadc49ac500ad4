"""A key-value cache in fixed memory, so that a captured graph can write into it and read from it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

#: What a layer does with new keys and values: see `StaticKVLayer.update`.
APPEND, PREFILL, DECODE = "append", "prefill", "decode"
#: The name that transformers knows `grouped_attention` by.
ATTENTION_NAME = "vlprune_graph"


class StaticKVLayer(CacheLayerMixin):
    """One layer's keys and values, (B, heads, capacity, d), of which the first `filled` slots are in use."""

    is_sliding = False

    def __init__(self, capacity: int, write_slot: Tensor) -> None:
        super().__init__()
        self.capacity, self.write_slot = capacity, write_slot
        self.filled, self.mode = 0, APPEND

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = (
            new.new_zeros(*new.shape[:2], self.capacity, new.shape[3]) for new in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store new keys and values, and return those that attention is to look at.

        APPEND, outside of graphs: behind what is there, and all of it is looked at. PREFILL: from slot 0 on, and only
        the new ones are looked at, so that attention stays causal and needs no mask. DECODE: one token into slot
        `write_slot`, and all slots are looked at, through a mask.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        if self.mode == DECODE:
            self.keys.index_copy_(2, self.write_slot, key_states)
            self.values.index_copy_(2, self.write_slot, value_states)
            return self.keys, self.values
        start = 0 if self.mode == PREFILL else self.filled
        end = start + key_states.shape[2]
        self.keys[:, :, start:end].copy_(key_states)
        self.values[:, :, start:end].copy_(value_states)
        if self.mode == PREFILL:
            return key_states, value_states
        self.filled = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.filled + query_length, 0

    def get_seq_length(self) -> int:
        return self.filled

    def get_max_length(self) -> int:
        return self.capacity


class StaticKVCache(Cache):
    """The cache that `generate` is handed: one `StaticKVLayer` for each layer, all written at `write_slot`.

    >>> cache = StaticKVCache(layers=2, capacity=8, device=torch.device("cpu"))
    >>> keys, values = cache.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 0)
    >>> keys.shape, cache.get_seq_length(0), cache.get_seq_length(1)
    (torch.Size([1, 2, 3, 4]), 3, 0)
    """

    def __init__(self, layers: int, capacity: int, device: torch.device) -> None:
        self.write_slot = torch.zeros(1, dtype=torch.long, device=device)
        super().__init__(layers=[StaticKVLayer(capacity, self.write_slot) for _ in range(layers)])

    @property
    def is_initialized(self) -> bool:
        """Whether it holds tokens: some models tell a prompt from what follows by it."""
        return bool(self.get_seq_length())

    def set_length(self, length: int) -> None:
        """Set how many slots are in use."""
        for layer in self.layers:
            layer.filled = length

    def clear(self) -> None:
        """Zero all slots and use none: masked slots are multiplied by zero, which would not hide an earlier NaN."""
        tensors = [tensor for layer in self.layers if layer.is_initialized for tensor in (layer.keys, layer.values)]
        if tensors:
            torch._foreach_zero_(tensors)
        self.set_length(0)

    def to_dynamic(self, config: Any) -> DynamicCache:
        """Copy it into a cache that grows, as `generate` would have returned."""
        cache = DynamicCache(config=config)
        for i, layer in enumerate(self.layers):
            end = layer.filled
            cache.update(layer.keys[:, :, :end].clone(), layer.values[:, :, :end].clone(), i)
        return cache


@contextmanager
def write_mode(cache: StaticKVCache, mode: str, config: Any) -> Iterator[None]:
    """Inside, the layers store in that mode, and attention is `grouped_attention`.

    transformers makes no mask for an attention that it does not know, which is wanted: a plain causal prefill needs
    none, and while a graph is captured 5.17 would make one all the same.
    """
    before = config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION_NAME, grouped_attention)
    for layer in cache.layers:
        layer.mode = mode
    config._attn_implementation = ATTENTION_NAME
    try:
        yield
    finally:
        config._attn_implementation = before
        for layer in cache.layers:
            layer.mode = APPEND


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Any]:
    """transformers' sdpa attention, in which one token's queries that share a key head attend together.

    With a mask transformers copies the whole cache once for each query head instead.
    """
    batch, heads, length, width = query.shape
    if length > 1 or heads == key.shape[1] or attention_mask is None:
        result: tuple[Tensor, Any] = sdpa_attention_forward(module, query, key, value, attention_mask, **options)
        return result
    groups = query.reshape(batch, key.shape[1], -1, width)
    mask = attention_mask.expand(-1, -1, groups.shape[2], -1)
    out = F.scaled_dot_product_attention(groups, key, value, attn_mask=mask, scale=options.get("scaling"))
    return out.reshape(batch, 1, heads, width), None

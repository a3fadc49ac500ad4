"""A key-value cache that lies still: fixed memory, so that a captured graph can write into it and read from it."""

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

#: What a layer does with new keys and values: see `Slots.update`.
APPEND, FILL, STEP = "append", "fill", "step"
ATTENTION = "vlprune_graph"


class Slots(CacheLayerMixin):
    """One layer's keys and values, (B, heads, capacity, d), of which the first `filled` are in use."""

    is_sliding = False

    def __init__(self, capacity: int, at: Tensor) -> None:
        super().__init__()
        self.capacity, self.at = capacity, at
        self.filled, self.mode = 0, APPEND

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys, self.values = (
            new.new_zeros(*new.shape[:2], self.capacity, new.shape[3]) for new in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Store what is new, and return what attention is to look at.

        APPEND, outside of graphs: behind what is there, and all of it is looked at. FILL, the prefill: from slot 0 on,
        and only the new ones are looked at, so that attention stays causal and needs no mask. STEP: one token into
        slot `at`, and all slots are looked at, through a mask.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.keys is not None
        assert self.values is not None
        if self.mode == STEP:
            self.keys.index_copy_(2, self.at, key_states)
            self.values.index_copy_(2, self.at, value_states)
            return self.keys, self.values
        start = 0 if self.mode == FILL else self.filled
        end = start + key_states.shape[2]
        self.keys[:, :, start:end].copy_(key_states)
        self.values[:, :, start:end].copy_(value_states)
        if self.mode == FILL:
            return key_states, value_states
        self.filled = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.filled + query_length, 0

    def get_seq_length(self) -> int:
        return self.filled

    def get_max_length(self) -> int:
        return self.capacity


class SlotCache(Cache):
    """The layers' slots as the cache that `generate` takes.

    >>> cache = SlotCache(layers=2, capacity=8, device=torch.device("cpu"))
    >>> keys, values = cache.update(torch.ones(1, 2, 3, 4), torch.ones(1, 2, 3, 4), 0)
    >>> keys.shape, cache.get_seq_length(0), cache.get_seq_length(1)
    (torch.Size([1, 2, 3, 4]), 3, 0)
    """

    def __init__(self, layers: int, capacity: int, device: torch.device) -> None:
        self.at = torch.zeros(1, dtype=torch.long, device=device)
        super().__init__(layers=[Slots(capacity, self.at) for _ in range(layers)])

    @property
    def is_initialized(self) -> bool:
        """Whether it holds something: some models tell a prompt from what follows by it."""
        return bool(self.get_seq_length())

    def fill(self, length: int) -> None:
        """Say how many slots are in use."""
        for layer in self.layers:
            layer.filled = length

    def clear(self) -> None:
        """Forget everything; masked slots are multiplied by zero, which does not hide a NaN of an earlier call."""
        held = [part for layer in self.layers if layer.is_initialized for part in (layer.keys, layer.values)]
        if held:
            torch._foreach_zero_(held)
        self.fill(0)

    def dynamic(self, config: Any) -> DynamicCache:
        """A copy that grows, as `generate` would have returned it."""
        cache = DynamicCache(config=config)
        for i, layer in enumerate(self.layers):
            end = layer.filled
            cache.update(layer.keys[:, :, :end].clone(), layer.values[:, :, :end].clone(), i)
        return cache


@contextmanager
def writing(cache: SlotCache, mode: str, config: Any) -> Iterator[None]:
    """Inside, the layers store in that mode, and attention is ours.

    transformers makes no mask for an attention that it does not know, which is wanted: a plain causal prefill needs
    none, and while a graph is captured 5.17 would make one all the same.
    """
    before = config._attn_implementation
    ALL_ATTENTION_FUNCTIONS.register(ATTENTION, attention)
    for layer in cache.layers:
        layer.mode = mode
    config._attn_implementation = ATTENTION
    try:
        yield
    finally:
        config._attn_implementation = before
        for layer in cache.layers:
            layer.mode = APPEND


def attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, Any]:
    """transformers' sdpa; of one token, the queries that share a key head attend together.

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

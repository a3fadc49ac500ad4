"""Bytes of the key-value cache: what a cache holds, and what a prompt will need."""

from __future__ import annotations

from typing import Any

import torch

from vlprune.measure.flops import LLMShape


def kv_cache_bytes(cache: Any) -> int:
    """Bytes of the keys and values that a transformers cache holds, over all layers (a static cache: what it reserves).

    >>> from transformers import DynamicCache
    >>> cache = DynamicCache()
    >>> _ = cache.update(torch.zeros(1, 2, 5, 8), torch.zeros(1, 2, 5, 8), 0)
    >>> kv_cache_bytes(cache)
    640
    """
    layers = getattr(cache, "layers", None)
    if layers is None:
        raise TypeError(f"cache is a {type(cache).__name__}: pass a transformers cache, such as past_key_values.")
    filled = [layer for layer in layers if getattr(layer, "keys", None) is not None]
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in filled)


def kv_bytes(model: Any, tokens: int, *, batch: int = 1, dtype: torch.dtype | None = None) -> int:
    """Bytes that the keys and values of `tokens` tokens take, by formula; `dtype` is the model's own unless given.

    >>> vicuna = LLMShape(layers=32, width=4096, inner=11008, heads=32, kv_heads=32, head_width=128, vocabulary=32064)
    >>> kv_bytes(vicuna, 576, dtype=torch.float16) / 2**20
    288.0
    """
    dtype = dtype if dtype is not None else getattr(model, "dtype", None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"dtype={dtype!r}: pass the dtype of the cache, such as torch.float16.")
    return LLMShape.of(model).kv_values_per_token * tokens * batch * dtype.itemsize

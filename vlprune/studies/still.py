"""Features of images that lie still."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from vlprune.pruning.feature_cache import FeatureCache


class StillCache(FeatureCache):
    """For pixels that nobody writes to: a batch that many methods are asked about is read for its names only once.

    >>> import torch
    >>> cache, pixels = StillCache(100), torch.zeros(2, 3)
    >>> cache.names(pixels) is cache.names(pixels)
    True
    """

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self._named: dict[int, tuple[Tensor, list[Hashable]]] = {}

    def names(self, pixels: Tensor) -> list[Hashable]:
        if id(pixels) not in self._named:  # which no other tensor can have while this one is held
            self._named[id(pixels)] = pixels, super().names(pixels)
        return self._named[id(pixels)][1]

    def clear(self) -> None:
        super().clear()
        self._named.clear()

"""Forwards that do what the parts of a vision tower do in fewer kernels, and whether they may."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vlprune.cuda_graphs.capture import ModuleInspector

#: Columns inside an MLP are filled up to a multiple of this: on an H200 4,352 take less time than SigLIP's 4,304, and
#: 3,456 a third of that of Qwen2.5-VL's 3,420.
TILE = 128


class FusedForward(ABC):
    """Takes the place of a part's forward; calls it with gradients, under autocast, for training, and if not in use."""

    def __init__(self, part: Any) -> None:
        self.part = part
        self.in_use = False

    def __call__(self, states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        autocast = torch.is_autocast_enabled(states.device.type)
        if not self.in_use or torch.is_grad_enabled() or autocast or self.part.training:
            return self.plain(states, *args, **kwargs)
        return self.fused(states, *args, **kwargs)

    def plain(self, *args: Any, **kwargs: Any) -> Tensor:
        """What the part's own forward gives."""
        out: Tensor = type(self.part).forward(self.part, *args, **kwargs)
        return out

    @abstractmethod
    def fused(self, *args: Any, **kwargs: Any) -> Tensor:
        """The same in fewer kernels."""

    @abstractmethod
    def can_fuse(self) -> bool:
        """Whether `fused` computes the same as `plain` with the part as it is now."""

    def fuse_weights(self) -> None:
        """Lay the part's weights out as `fused` wants them."""


class FusedTower:
    """Forwards of a tower's parts, to be put on them; `refresh` is to be called before the tower is.

    Weights are moved (see `vlprune.cuda_graphs.fused_linear`).
    """

    def __init__(self, forwards: Sequence[FusedForward]) -> None:
        self.forwards = forwards
        self._inspect = ModuleInspector(nn.ModuleList([one.part for one in forwards]))
        self._addresses: Hashable = None
        self._fused = False
        self.refresh()

    def refresh(self) -> None:
        """See whether weights or hooks have changed."""
        addresses, hooked = self._inspect()
        if not hooked and addresses != self._addresses:
            self._fused = all(one.can_fuse() for one in self.forwards)
            for one in self.forwards if self._fused else ():
                one.fuse_weights()
            self._addresses, _ = self._inspect()
        for one in self.forwards:
            one.in_use = self._fused and not hooked

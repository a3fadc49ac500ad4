"""Linear layers as one product: same memory, and nothing is held between calls."""

import torch
from torch import nn

from vlprune.cuda_graphs.fused_linear import FusedLinear, LinearSlice


def test_nothing_is_held():
    fused = FusedLinear([nn.Linear(4, 2), nn.Linear(4, 3)])
    for _ in range(2):
        x = torch.randn(1, 4)
        sizes = [LinearSlice(fused, i)(x).shape[1] for i in range(2)]
        assert sizes == [2, 3]
        assert fused.last_input is None
        assert fused.last_outputs == []

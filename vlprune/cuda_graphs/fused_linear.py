"""Linear layers that read the same input, computed as one matrix product.

A GPU's multiprocessors share the tiles of a product, and small products leave many of them idle.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class FusedLinear(nn.Module):
    """Several linear layers as one product; `LinearSlice` gives each layer's part of it.

    The layers' weights are moved to lie one behind the other, and the layers hold views of that memory from then on:
    same names, same values, no second copy.
    """

    def __init__(self, layers: list[Any]) -> None:
        super().__init__()
        self.out_sizes = [layer.out_features for layer in layers]
        self.weight = _store_contiguously([layer.weight for layer in layers])
        self.bias = None if layers[0].bias is None else _store_contiguously([layer.bias for layer in layers])
        self.last_input: Tensor | None = None
        self.last_outputs: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def layer_output(self, i: int, x: Tensor) -> Tensor:
        """Output of the i-th layer for x; the product is computed for the first layer and held up to the last."""
        if x is not self.last_input:
            self.last_input, self.last_outputs = x, list(self(x).split(self.out_sizes, dim=-1))
        output = self.last_outputs[i]
        if i == len(self.out_sizes) - 1:  # hold nothing: what is compiled must find this as it was found before
            self.last_input, self.last_outputs = None, []
        return output


class LinearSlice(nn.Module):
    """Replaces one of the layers of a `FusedLinear`."""

    def __init__(self, fused: FusedLinear, number: int) -> None:
        super().__init__()
        self.fused, self.number = fused, number

    def forward(self, x: Tensor) -> Tensor:
        return self.fused.layer_output(self.number, x)


def can_fuse_linear(layers: list[Any]) -> bool:
    """Whether all are plain `nn.Linear` layers that nobody has changed, and whose weights can lie side by side."""
    if any(type(layer) is not nn.Linear or "forward" in layer.__dict__ for layer in layers):
        return False
    weights = [weight for layer in layers for weight in layer.parameters()]
    kinds = {(type(weight), type(weight.data), weight.dtype, weight.device, weight.shape[1:]) for weight in weights}
    biased = len(weights) == 2 * len(layers)
    return (
        all(kind[:2] == (nn.Parameter, Tensor) and kind[2].is_floating_point for kind in kinds)
        and len(kinds) == 1 + biased
        and len({id(weight) for weight in weights}) == len(layers) * (1 + biased)
    )


@torch.no_grad()
def fill_up_rows(weights: list[Any], rows: int) -> Tensor:
    """One tensor of the weights, all of one shape, with so many rows of zeros behind each.

    They are views of it from now on, if they were not yet.
    """
    first, step = weights[0].data, len(weights[0]) + rows
    shape = (len(weights) * step, *first.shape[1:])
    places = [(i * step * first[0].numel(), first.untyped_storage().data_ptr()) for i in range(len(weights))]
    found = [(one.storage_offset(), one.untyped_storage().data_ptr()) for one in weights]
    size = shape[0] * first[0].nbytes
    if found == places and first.untyped_storage().nbytes() == size and all(one.is_contiguous() for one in weights):
        return first.as_strided(shape, first.stride())
    whole = first.new_zeros(shape)
    for part, weight in zip(whole.split(step), weights):
        weight.data = part[: len(weight)].copy_(weight.data)
    return whole


@torch.no_grad()
def fill_up_columns(weight: Any, columns: int) -> Tensor:
    """The weight with so many columns of zeros behind it; it is a view of that from now on, if it was not yet.

    Rows of a matrix that begin at multiples of 16 bytes are what fast kernels want.
    """
    rows, width = weight.shape
    shape, size = (rows, width + columns), rows * (width + columns) * weight.itemsize
    if weight.stride() != (shape[1], 1) or weight.storage_offset() or weight.untyped_storage().nbytes() != size:
        whole = weight.data.new_zeros(shape)
        weight.data = whole[:, :width].copy_(weight.data)
    return weight.data.as_strided(shape, weight.stride())


@torch.no_grad()
def _store_contiguously(weights: list[Tensor]) -> Tensor:
    """One tensor that holds all the weights, which are views of it from now on, if they were not yet."""
    first, sizes = weights[0].data, [len(weight) for weight in weights]
    ends = [weight.data_ptr() + weight.nbytes for weight in weights]
    if (
        all(weight.is_contiguous() for weight in weights)
        and len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
        and [weight.data_ptr() for weight in weights[1:]] == ends[:-1]
    ):
        return first.as_strided((sum(sizes), *first.shape[1:]), first.stride())
    whole = torch.cat([weight.data for weight in weights])
    for weight, part in zip(weights, whole.split(sizes)):
        weight.data = part
    if whole.is_cuda:
        torch.cuda.empty_cache()  # the old ones are too small for what comes, and would be held beside it
    return whole

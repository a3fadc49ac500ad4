"""Which images of a batch repeat another one, bit for bit or nearly."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

#: Integers as wide as a pixel value, by its bytes: equal bits are equal, also those of NaN.
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@torch.no_grad()
def find_repeats(pixels: Tensor, least_cosine: float | None = None) -> Tensor:
    """For each image of `pixels` (N, ...) the number (N,) of the one that stands for it: itself, or an earlier one.

    An image is stood for by the first one with equal bits. With `least_cosine`, one without equal bits is stood for by
    the latest image before it that stands for itself, if the cosine of their pixels is at least that. The work
    grows with N, not with its square.

    >>> find_repeats(torch.tensor([[1.0, 2.0], [3.0, 0.1], [1.0, 2.0], [3.0, 0.0]])).tolist()
    [0, 1, 0, 3]
    >>> find_repeats(torch.tensor([[1.0, 2.0], [3.0, 0.1], [1.0, 2.0], [3.0, 0.0]]), least_cosine=0.99).tolist()
    [0, 1, 0, 1]
    """
    equal = first_equal(pixels.flatten(1))
    return equal if least_cosine is None else _latest_near(pixels.flatten(1), equal, least_cosine)


def first_equal(rows: Tensor, group: Tensor | None = None) -> Tensor:
    """For each row (N, P) the first one (N,) that has the same bits and, if groups (N,) are given, the same group.

    >>> first_equal(torch.tensor([[1.0], [2.0], [1.0], [1.0]]), torch.tensor([0, 0, 0, 1])).tolist()
    [0, 1, 0, 3]
    """
    bits = rows.view(BITS[rows.element_size()])
    places, own = (torch.arange(count, device=rows.device) for count in reversed(bits.shape))
    sums = (bits * (2 * places + 1).to(bits.dtype)).sum(dim=1)  # of integers: equal rows have equal sums, always
    keys = torch.stack([sums, sums if group is None else group], dim=1)
    alike = keys.unique(dim=0, return_inverse=True)[1]
    first = torch.full_like(own, len(own)).scatter_reduce_(0, alike, own, "amin")[alike]
    return torch.where((bits == bits[first]).all(dim=1), first, own)  # other rows may have that sum by chance


def _latest_near(rows: Tensor, equal: Tensor, least_cosine: float) -> Tensor:
    """`equal` (N,), where a row (N, P) that equals none before it may be near the latest that stands for itself."""
    unit = F.normalize(rows.float(), dim=1)
    own = torch.arange(len(rows), device=rows.device)
    found, latest = own.clone(), own[:1]
    for i in range(1, len(rows)):
        near = (unit[i] * unit.index_select(0, latest)).sum(dim=1) >= least_cosine
        apart = torch.where(near, latest, own[i : i + 1])
        found[i : i + 1] = torch.where(equal[i : i + 1] < i, found[equal[i : i + 1]], apart)
        latest = torch.maximum(latest, found[i : i + 1])
    return found

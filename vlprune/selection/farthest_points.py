"""DivPrune: a greedy choice of tokens that are far from each other."""

import torch
from torch import Tensor

from .checks import check_count, check_tensor, checked_units
from .dispatch import fused_for
from .dpp import worth_a_matrix
from .numerics import TIE, exact_float32, first_best

BLOCK = 1024  #: rows of cosines that are held at a time


def farthest_points(features: Tensor, k: int) -> Tensor:
    """Choose k tokens one by one, each time the one that is farthest from its nearest chosen token.

    The distance of two tokens is 1 − cosine. The first is the one whose nearest neighbour is farthest. Distances closer
    than 2e-6 are tied and the lower index wins. A prefix of the answer is the answer for a smaller k.

    Alvar et al., *DivPrune: Diversity-based Visual Token Pruning for Large Multimodal Models* (CVPR 2025).

    Args:
        features: (B, n, d), any floating dtype. B may be 0.
        k: from 1 to n.

    Returns:
        (B, k) int64, in order of choice.

    >>> tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [-1.0, 0.2]]])
    >>> farthest_points(tokens, 3).tolist()
    [[2, 0, 3]]
    """
    check_tensor("features", features, "B n d")
    n = features.shape[1]
    k = check_count("k", k, 1, n, "the number of tokens")
    if fast := fused_for(features):
        return fast.farthest_points(features, k)
    with exact_float32(features.device):
        unit, device = checked_units(features), features.device
        cosine = unit @ unit.mT if worth_a_matrix(n, k) else None
        blocks = [_nearest(unit, cosine, range(i, min(i + BLOCK, n))) for i in range(0, n, BLOCK)]
        distance = 1.0 - torch.cat(blocks, 1)
        tie = torch.full((len(unit), 1), TIE, device=device)
        image = torch.arange(len(unit), device=device)
        chosen = [first_best(distance, tie)]
        distance = torch.full_like(distance, torch.inf)
        for _ in range(1, k):
            j = chosen[-1]
            row = torch.einsum("bnd,bd->bn", unit, unit[image, j]) if cosine is None else cosine[image, j]
            distance = torch.minimum(distance, 1.0 - row)
            distance[image, j] = -torch.inf
            chosen.append(first_best(distance, tie))
        return torch.stack(chosen, 1)


def _nearest(unit: Tensor, cosine: Tensor | None, rows: range) -> Tensor:
    """(B, len(rows)) the largest cosine of these tokens to any other."""
    block = unit[:, rows.start : rows.stop] @ unit.mT if cosine is None else cosine[:, rows.start : rows.stop].clone()
    block.diagonal(offset=rows.start, dim1=1, dim2=2).fill_(-torch.inf)
    return block.amax(2)

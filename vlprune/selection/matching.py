"""Which tokens merge into which: the bipartite soft matching of ToMe (Bolya et al., ICLR 2023)."""

import torch
from torch import Tensor

from .numerics import TIE, exact_float32, first_best, unit_vectors
from .top_k import best_first


def match_tokens(keys: Tensor, count: int) -> tuple[Tensor, Tensor, Tensor]:
    """Choose `count` tokens that merge into others, by their keys.

    The tokens at even places look for the most similar one (by cosine) at an odd place; of these pairs the `count`
    most similar are merged. Several may merge into one. Of equals (within 2e-6) the first is taken.

    Args:
        keys: (B, n, d), any floating dtype.
        count: from 1 to n // 2.

    Returns:
        The places of the tokens that stay (B, n − count) and of those that go (B, count), and into which of those that
        stay each of them goes (B, count), counted among those that stay. Those that stay are in order.

    >>> keys = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 0.9], [1.0, 1.0], [0.0, -1.0], [1.0, 0.2]]])
    >>> [places.tolist() for places in match_tokens(keys, 2)]
    [[[1, 3, 4, 5]], [[2, 0]], [[1, 3]]]
    """
    B, n, _ = keys.shape
    with exact_float32(keys.device):
        unit, _ = unit_vectors(keys.to(torch.float32))
        cosine = unit[:, ::2] @ unit[:, 1::2].mT
        best = first_best(cosine.flatten(0, 1), cosine.new_full((), TIE)).view(B, -1)
        pairs = best_first(cosine.gather(2, best[:, :, None])[:, :, 0])[:, :count]
        go, target = 2 * pairs, 2 * best.gather(1, pairs) + 1
        going = torch.zeros(B, n, dtype=torch.int64, device=keys.device).scatter_(1, go, 1)
        stay = going.argsort(dim=1, stable=True)[:, : n - count]
        return stay, go, target - going.cumsum(dim=1).gather(1, target)

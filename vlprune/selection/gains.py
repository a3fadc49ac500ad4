"""How much each choice of the greedy added."""

import torch
from torch import Tensor

from .checks import check_choice, check_indices, check_tensor
from .dpp import KERNELS, check_relevance, weigh
from .numerics import exact_float32, take, unit_vectors


def greedy_gains(
    features: Tensor, relevance: Tensor, order: Tensor, *, kind: str = "s_prime", eps: float = 1e-6
) -> Tensor:
    """What each token of an order adds to those before it: the factor by which it multiplies the determinant.

    These are the greedy's v² at the time of choice, found again from the chosen block alone as the squared diagonal of
    its Cholesky factor, in float64. In the greedy's own order they fall, to about 0 when the features are spent.

    Args:
        features: (B, n, d), any floating dtype.
        relevance: (B, n), finite and not negative.
        order: (B, k) int64, distinct, such as `greedy_map_features` returns.
        kind: as in `query_kernel`.
        eps: added to the diagonal, relative to the first token's.

    Returns:
        (B, k) float32.

    >>> tokens = torch.tensor([[[1.0, 0.0], [0.6, 0.8], [1.0, 0.0]]])
    >>> greedy_gains(tokens, torch.ones(1, 3), torch.tensor([[0, 1, 2]])).round(decimals=2)
    tensor([[1.0000, 0.6400, 0.0000]])
    """
    check_tensor("features", features, "B n d")
    check_relevance(features, relevance)
    check_indices("order", order, "B k", B=len(features))
    check_choice("kind", kind, KERNELS)
    with exact_float32(features.device):
        unit, length = unit_vectors(take(features, order).float())
        weight, diagonal = weigh(length, relevance.to(torch.float32).gather(1, order), kind)
        rows = unit.double() * weight.double()[:, :, None]
        block = rows @ rows.mT
        ridge = eps * diagonal[:, :1].double()
        block.diagonal(dim1=1, dim2=2).copy_(diagonal.double() + ridge)
        factor = torch.linalg.cholesky_ex(block).L.diagonal(dim1=1, dim2=2)
        return (factor.square() - ridge).clamp(min=0.0).nan_to_num(0.0).to(torch.float32)

"""The tokens with the highest scores, and the tokens that were not chosen."""

import torch
from torch import Tensor

from .checks import check_count, check_indices, check_tensor, finite, require
from .numerics import ascending, wide


def highest(scores: Tensor, k: int) -> Tensor:
    """The k tokens with the highest scores, best first; on a tie the lower index.

    Scores may have any unit, so they are compared in units of their image's mean |score|: there, neighbours in
    sorted order are tied when they differ by at most 2e-6 of the larger (of 1, if both are smaller).

    Args:
        scores: (B, n), any floating dtype. B may be 0.
        k: from 0 to n.

    Returns:
        (B, k) int64.

    >>> highest(torch.tensor([[0.1, 0.7, 0.2, 0.7]]), 3).tolist()
    [[1, 3, 2]]
    """
    check_tensor("scores", scores, "B n")
    k = check_count("k", k, 0, scores.shape[1], "the number of tokens")
    values = scores.detach().to(torch.float32)
    require(finite("scores", values, "B n"))
    return best_first(values)[:, :k]


def best_first(values: Tensor, *, exact_ties: bool = False) -> Tensor:
    """All tokens (B, n) from the highest of finite float32 `values` (B, n) to the lowest; on a tie the lower index.

    Values are tied as in `highest`, or, with `exact_ties`, only where they are equal: attention inside an LLM is so
    uneven that the lower half of an image would be tied otherwise.

    >>> best_first(torch.tensor([[1.0, 3.0, 1.0 + 1e-6, 3.0]])).tolist()
    [[1, 3, 0, 2]]
    >>> best_first(torch.tensor([[1.0, 3.0, 1.0 + 1e-6, 3.0]]), exact_ties=True).tolist()
    [[1, 3, 2, 0]]
    """
    if exact_ties:
        return values.argsort(dim=1, descending=True, stable=True)
    unit = values.abs().mean(1, keepdim=True, dtype=wide(values.device)).clamp(min=torch.finfo(torch.float32).tiny)
    return ascending((-values / unit).to(torch.float32))


def remaining(chosen: Tensor, n: int) -> Tensor:
    """The tokens of 0 … n−1 that were not chosen, ascending.

    Args:
        chosen: (B, k) int64, distinct; k may be 0.

    Returns:
        (B, n − k) int64.

    >>> remaining(torch.tensor([[3, 0]]), 5).tolist()
    [[1, 2, 4]]
    """
    if chosen.ndim != 2 or chosen.shape[1]:  # an empty choice has no axis that could be checked
        check_indices("chosen", chosen, "B k")
    check_count("n", n, chosen.shape[1], 2**31, "as many as an image can have")
    taken = torch.zeros(chosen.shape[0], n, dtype=torch.uint8, device=chosen.device)
    taken.scatter_(1, chosen, 1)
    return taken.argsort(dim=1, stable=True)[:, : n - chosen.shape[1]]

"""Many tokens into one: which go together, and their means."""

import torch
from torch import Tensor

from .checks import Condition, check_count, check_indices, check_tensor, finite, require
from .numerics import TIE, exact_float32, first_best, take, unit_vectors


def assign(features: Tensor, targets: Tensor) -> Tensor:
    """For each token, which of the targets it is most similar to by cosine; of equals (within 2e-6) the first.

    A target is assigned like any other token: to itself, or to an earlier duplicate.

    Args:
        features: (B, n, d), any floating dtype. B may be 0.
        targets: (B, c) int64, tokens.

    Returns:
        (B, n) int64, places in `targets`.

    >>> tokens = torch.tensor([[[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.2, 2.0]]])
    >>> assign(tokens, torch.tensor([[0, 2]])).tolist()
    [[0, 0, 1, 1]]
    """
    check_tensor("features", features, "B n d")
    B, n, _ = features.shape
    check_indices("targets", targets, "B c", like=features, B=B)
    with exact_float32(features.device):
        x = features.to(torch.float32)
        unit, length = unit_vectors(x)
        require(finite("features", x, "B n d", length), _within("targets", targets, 0, n - 1))
        cosine = unit @ take(unit, targets).mT
        return first_best(cosine.flatten(0, 1), cosine.new_tensor(TIE)).view(B, n)


def group_means(features: Tensor, groups: Tensor, count: int) -> Tensor:
    """The mean of each group of tokens; zeros for a group without any.

    Args:
        features: (B, n, d), any floating dtype. B may be 0.
        groups: (B, n) int64, each token's group, from 0 to count − 1, or −1 for none.
        count: how many groups, from 1 to n.

    Returns:
        (B, count, d) float32.

    >>> tokens = torch.tensor([[[1.0], [2.0], [4.0], [9.0]]])
    >>> group_means(tokens, torch.tensor([[1, 0, 0, -1]]), 3).flatten().tolist()
    [3.0, 1.0, 0.0]
    """
    check_tensor("features", features, "B n d")
    B, n, _ = features.shape
    check_indices("groups", groups, "B n", like=features, B=B, n=n)
    count = check_count("count", count, 1, n, "the number of tokens")
    with exact_float32(features.device):
        x = features.to(torch.float32)
        require(finite("features", x, "B n d"), _within("groups", groups, -1, count - 1))
        # a product, not index_add: on a GPU that would add in a different order each time
        member = (groups[:, None] == torch.arange(count, device=groups.device)[:, None]).to(torch.float32)
        return (member @ x) / member.sum(2, keepdim=True).clamp(min=1.0)


def _within(name: str, value: Tensor, low: int, high: int) -> Condition:
    outside = (value < low) | (value > high)

    def words() -> str:
        return f"{name} must be from {low} to {high}, got {value[outside][0].item()}."

    return ~outside.any(), words

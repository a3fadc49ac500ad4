"""Merging tokens: which ones go together, and the mean of each group."""

import torch
from torch import Tensor

from .checks import Condition, check_count, check_indices, check_tensor, finite, require
from .numerics import TIE, exact_float32, first_best, take, unit_vectors

NEIGHBOURS = 5  #: by which `density_peaks` measures a token's density


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
        return first_best(cosine.flatten(0, 1), cosine.new_full((), TIE)).view(B, n)


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
        return means(x, groups, count)


def means(x: Tensor, groups: Tensor, count: int) -> Tensor:
    """`group_means` of arguments that were checked, in float32."""
    # a product, not index_add: on a GPU that would add in a different order each time
    member = (groups[:, None] == torch.arange(count, device=groups.device)[:, None]).to(torch.float32)
    return (member @ x.float()) / member.sum(2, keepdim=True).clamp(min=1.0)


def density_peaks(states: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Cluster the tokens `states` (B, n, d): return `count` centres (B, count) and each token's cluster (B, n).

    Density peaks by nearest neighbours (Du, Ding and Jia, 2016). A token's density is `exp(-mean d²)` over its five
    nearest others, with distances divided by √d; its separation is the distance to the nearest denser token (for the
    densest, to the farthest one). The tokens with the largest density times separation are the centres, and every
    other token joins the nearest centre. Ties go to the lower index, so that the result never varies.

    >>> places = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 90.0, 91.0, 92.0, 93.0, 94.0, 95.0]
    >>> density_peaks(torch.tensor(places).view(1, 12, 1), 2)
    (tensor([[2, 8]]), tensor([[0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1]]))
    """
    n = states.shape[1]
    states = states.float()
    apart = torch.cdist(states, states, compute_mode="donot_use_mm_for_euclid_dist") / states.shape[-1] ** 0.5
    if n == 1:
        return apart.new_zeros(len(states), 1, dtype=torch.long), apart.new_zeros(len(states), 1, dtype=torch.long)
    itself = torch.eye(n, dtype=torch.bool, device=states.device)
    nearest = apart.masked_fill(itself, torch.inf).topk(min(NEIGHBOURS, n - 1), dim=-1, largest=False).values
    density = -nearest.square().mean(dim=-1)  # its logarithm: states of an LLM lie too far apart for the rest
    place = torch.arange(n, device=states.device)
    denser = (density[:, None] > density[:, :, None]) | (
        (density[:, None] == density[:, :, None]) & (place[None] < place[:, None])
    )
    separation = torch.where(denser, apart, torch.inf).amin(dim=-1)
    separation = torch.where(denser.any(dim=-1), separation, apart.amax(dim=-1))
    centres = (density + separation.log()).argsort(dim=1, descending=True, stable=True)[:, :count].sort(dim=1).values
    cluster = apart.gather(1, centres[..., None].expand(-1, -1, n)).argmin(dim=1)
    own = torch.arange(count, device=states.device).expand_as(centres)
    return centres, cluster.scatter(1, centres, own)


def _within(name: str, value: Tensor, low: int, high: int) -> Condition:
    """The condition that all values of an index tensor lie in [low, high]."""
    outside = (value < low) | (value > high)

    def words() -> str:
        return f"{name}={value[outside][0].item()}: must be from {low} to {high}."

    return ~outside.any(), words

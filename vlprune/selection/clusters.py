"""Density peaks: a few clusters of many tokens, without randomness."""

import torch
from torch import Tensor

#: How many neighbours a token's density is measured by.
NEIGHBOURS = 5


def density_peaks(states: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """`count` clusters of the tokens `states` (B, n, d): their centres (B, count), and each token's cluster (B, n).

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


def cluster_means(states: Tensor, cluster: Tensor, count: int) -> Tensor:
    """(B, count, d) the plain means of the tokens `states` (B, n, d) by `cluster` (B, n), in float32.

    >>> cluster_means(torch.tensor([[[1.0], [2.0], [6.0]]]), torch.tensor([[0, 0, 1]]), 2)
    tensor([[[1.5000],
             [6.0000]]])
    """
    member = torch.nn.functional.one_hot(cluster, count).to(torch.float32).transpose(1, 2)
    return member @ states.float() / member.sum(dim=-1, keepdim=True)

"""The graph as a weight: what others say too counts less."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .checks import check_tensor
from .dispatch import fused_for
from .graph import graph_scores


def graph_weights(
    features: Tensor,
    *,
    grid: tuple[int, int] | None = None,
    tau: float | str = 0.3,
    gamma: float = 5.0,
    graph: str = "bipartite",
) -> Tensor:
    """What redundancy leaves of each token's weight: 1 / (1 + s / the image's median of s), ½ at the median.

    s is the redundancy by `graph_scores` of the mean of the 2 × 2 neighbours that a token belongs to, at least 0; its
    median counts as at least 1, which is one neighbour just as similar as `tau`. Where a side of the grid is odd, the
    last row or column has cells of its own. The graph of the means has a quarter of the tokens, a sixteenth of the
    cosines.

    Args:
        features: (B, n, d), any floating dtype, finite. B may be 0.
        grid: (rows, columns) of the tokens; (1, n) if not said, where the means are of pairs.
        tau, gamma, graph: as in `graph_scores`.

    Returns:
        (B, n) float32 in (0, 1].

    >>> tokens = torch.eye(2)[[0, 0, 0, 0, 1, 1, 0, 0]][None]   # of four pairs three say the same
    >>> graph_weights(tokens, tau=1.0).tolist()
    [[0.3333333432674408, 0.3333333432674408, 0.5, 0.5, 1.0, 1.0, 0.5, 0.5]]
    """
    check_tensor("features", features, "B n d")
    B, n, _ = features.shape
    rows, columns = grid or (1, n)
    if rows * columns != n:
        raise ValueError(f"grid={grid}: must have as many cells as there are tokens, {n}.")
    if B == 0:
        return features.new_ones(B, n, dtype=torch.float32)
    settings: dict[str, Any] = {"rows": rows, "columns": columns, "tau": tau, "gamma": gamma, "graph": graph}
    fast = None if isinstance(tau, str) else fused_for(features)  # an image's own threshold is read on the host
    return fast.replayed(_weights, {"features": features}, settings) if fast else _weights(features, **settings)


def _weights(features: Tensor, rows: int, columns: int, tau: float | str, gamma: float, graph: str) -> Tensor:
    """`graph_weights` of checked arguments, at least one image."""
    B, n, d = features.shape
    image = features.detach().to(torch.float32).reshape(B, rows, columns, d).permute(0, 3, 1, 2)
    means = F.avg_pool2d(image, 2, ceil_mode=True).permute(0, 2, 3, 1)
    high, wide = means.shape[1:3]
    s = graph_scores(means.reshape(B, high * wide, d), tau=tau, gamma=gamma, graph=graph).clamp(min=0.0)
    weight = 1.0 / (1.0 + s / s.median(dim=1, keepdim=True).values.clamp(min=1.0))
    spread = weight.view(B, high, 1, wide, 1).expand(-1, -1, 2, -1, 2).reshape(B, 2 * high, 2 * wide)
    return spread[:, :rows, :columns].reshape(B, n)

"""GSP: how much each token repeats others, from a sparse graph of cosine similarities."""

import torch
from torch import Tensor

from .checks import check_choice, check_count, check_real, check_tensor, finite, require
from .dispatch import fused_for
from .numerics import TIE, ascending, exact_float32, unit_vectors

GRAPHS = ("bipartite", "full", "random")
HELD = 2**25  #: cosines that are held at a time: all of a bipartite graph's up to 11,585 tokens


def graph_scores(features: Tensor, *, tau: float = 0.3, gamma: float = 5.0, graph: str = "bipartite") -> Tensor:
    """Redundancy of each token: high where many tokens are similar to it.

    Two tokens that the graph lets meet share an edge when their cosine is at least `tau`. A token with d
    edges of mean weight μ scores d·exp(γ(μ − τ)); one with none scores its mean cosine to all it meets.

    - "bipartite": even tokens meet odd ones only, a quarter of the n² pairs.
    - "full": every token meets every other, itself excepted.
    - "random": as bipartite, but the halves are drawn at random, by `torch.randperm(n)` of a CPU generator
      seeded with 0, so the split depends on n alone.

    A token that meets nobody (n = 1) scores 0. An edge counts from tau − 2e-6 on, so that a cosine that
    equals tau on paper is an edge on every device.

    Args:
        features: (B, n, d), any floating dtype. B may be 0.
        tau: the least similarity that makes an edge, in [-1, 1].
        gamma: the weight of the mean similarity, at least 0, with gamma·(1 − tau) at most 80 (exp overflows).

    Returns:
        (B, n) float32.

    >>> tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])
    >>> graph_scores(tokens, tau=0.5, gamma=0.0).tolist()   # token 2 is like no other
    [[2.0, 1.0, 0.0, 1.0]]
    """
    check_tensor("features", features, "B n d")
    check_graph(tau, gamma, graph)
    if fast := fused_for(features):
        return fast.graph_scores(features, tau=tau, gamma=gamma, graph=graph)
    with exact_float32(features.device):
        x = features.to(torch.float32)
        unit, length = unit_vectors(x)
        require(finite("features", x, "B n d", length))
        return redundancy(unit, tau, gamma, graph)


def graph_keep(scores: Tensor, keep: int) -> Tensor:
    """The `keep` least redundant tokens, ascending; on a tie the lower index stays.

    Args:
        scores: (B, n), from `graph_scores`.
        keep: from 1 to n.

    Returns:
        (B, keep) int64.

    >>> graph_keep(torch.tensor([[2.0, 1.0, 0.0, 1.0]]), 2).tolist()
    [[1, 2]]
    """
    check_tensor("scores", scores, "B n")
    keep = check_count("keep", keep, 1, scores.shape[1], "the number of tokens")
    if fast := fused_for(scores):
        return fast.graph_keep(scores, keep)
    values = scores.to(torch.float32)
    require(finite("scores", values, "B n"))
    return least(values, keep)


def check_graph(tau: float, gamma: float, graph: str) -> None:
    """Raise unless the settings of `graph_scores` are allowed."""
    check_real("tau", tau, -1.0, 1.0)
    check_real("gamma", gamma, 0.0, float("inf"))
    check_choice("graph", graph, GRAPHS)
    if gamma * (1.0 - tau) > 80.0:
        raise ValueError(f"gamma * (1 - tau) must be at most 80 to stay finite, got {gamma:g} * {1.0 - tau:g}.")


def redundancy(unit: Tensor, tau: float, gamma: float, graph: str, known: Tensor | None = None) -> Tensor:
    """`graph_scores` on checked unit vectors; `known` (B, n, n) are all their cosines, where they are there already.

    Otherwise no more than HELD cosines are there at a time.
    """
    B, n, _ = unit.shape
    src: Tensor | slice = slice(None)
    dst: Tensor | slice = slice(None)
    if graph == "bipartite":
        src, dst = slice(0, None, 2), slice(1, None, 2)
    elif graph == "random":
        at = torch.randperm(n, generator=torch.Generator().manual_seed(0), device="cpu").to(unit.device)
        src, dst = at[: n - n // 2], at[n - n // 2 :]
    left, right = unit[:, src], unit[:, dst]
    step = left.shape[1] if known is not None else max(1, HELD // max(1, B * right.shape[1]))
    rows, columns = [], None
    for start in range(0, left.shape[1], step):
        cosine = left[:, start : start + step] @ right.mT if known is None else known[:, src][:, :, dst]
        edge = cosine >= tau - TIE
        if graph == "full":  # a token does not meet itself
            cosine = cosine.clone() if known is not None else cosine
            cosine.diagonal(offset=start, dim1=1, dim2=2).zero_()
            edge.diagonal(offset=start, dim1=1, dim2=2).fill_(False)
        similar = torch.where(edge, cosine, 0.0)
        rows.append(torch.stack([edge.sum(2).float(), similar.sum(2), cosine.sum(2)]))
        if graph != "full":
            sums = torch.stack([edge.sum(1).float(), similar.sum(1), cosine.sum(1)])
            columns = sums if columns is None else columns + sums
    scores = torch.empty(B, n, dtype=torch.float32, device=unit.device)
    scores[:, src] = _score(torch.cat(rows, dim=2), n - 1 if graph == "full" else n // 2, tau, gamma)
    if columns is not None:
        scores[:, dst] = _score(columns, n - n // 2, tau, gamma)
    return scores


def least(scores: Tensor, keep: int) -> Tensor:
    """`graph_keep` on checked scores."""
    return ascending(scores)[:, :keep].sort(dim=1).values


def _score(sums: Tensor, others: int, tau: float, gamma: float) -> Tensor:
    """From the number of edges, the sum of their cosines and the sum of all cosines (3, B, n)."""
    degree, similar, all_of_them = sums
    mean = similar / degree.clamp(min=1)
    return torch.where(degree > 0, degree * torch.exp(gamma * (mean - tau)), all_of_them / max(others, 1))

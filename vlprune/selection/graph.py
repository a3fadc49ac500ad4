"""GSP: how much each token repeats others, from a sparse graph of cosine similarities."""

import torch
from torch import Tensor

from .checks import check_choice, check_count, check_real, check_tensor, checked_units, finite, require
from .dispatch import fused_for
from .numerics import TIE, ascending, exact_float32

GRAPHS = ("bipartite", "full", "random")
THRESHOLDS = ("otsu", "quantile")
HELD = 2**25  #: cosines that are held at a time: all of a bipartite graph's up to 11,585 tokens
BINS = 1024  #: that `graph_threshold` counts cosines from −1 to 1 in
SHARE = 0.75  #: of the pairs that lie below the threshold "quantile"


def graph_scores(features: Tensor, *, tau: float | str = 0.3, gamma: float = 5.0, graph: str = "bipartite") -> Tensor:
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
        tau: the least similarity that makes an edge, in [-1, 1]; or "otsu" or "quantile", each image's own threshold
            by `graph_threshold`.
        gamma: the weight of the mean similarity, at least 0, with gamma·(1 − tau) at most 80 (exp overflows).

    Returns:
        (B, n) float32.

    >>> tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]])
    >>> graph_scores(tokens, tau=0.5, gamma=0.0).tolist()   # token 2 is like no other
    [[2.0, 1.0, 0.0, 1.0]]
    """
    check_tensor("features", features, "B n d")
    check_graph(tau, gamma, graph)
    if not isinstance(tau, str):
        return _scores(features, tau, gamma, graph)
    thresholds = _thresholds(features, tau, graph).tolist()
    scores = [_scores(image, own, gamma, graph) for image, own in zip(features.split(1), thresholds)]
    return torch.cat(scores) if scores else features.new_zeros(features.shape[:2], dtype=torch.float32)


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
    return ascending(values)[:, :keep].sort(dim=1).values


def graph_threshold(features: Tensor, rule: str, *, graph: str = "bipartite") -> Tensor:
    """The similarity from which on two tokens of an image count as alike, from all pairs that the graph lets meet.

    - "otsu": splits the pairs into alike and different so that the two differ most from each other (Otsu, 1979).
    - "quantile": a quarter of the pairs are alike.

    Similarities are counted in 1,024 bins and the threshold is a border between bins, so that rounding seldom moves it.

    Args:
        features: (B, n, d), any floating dtype. B may be 0.
        rule: "otsu" or "quantile".
        graph: as in `graph_scores`.

    Returns:
        (B,) float32, in [-1, 1]; 1 for an image in which no two tokens meet.

    >>> tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.1, 1.0]]])
    >>> graph_threshold(tokens, "otsu").tolist()   # between 0.1 and 0.995
    [0.546875]
    """
    check_tensor("features", features, "B n d")
    check_choice("rule", rule, THRESHOLDS)
    check_choice("graph", graph, GRAPHS)
    return _thresholds(features, rule, graph)


def check_graph(tau: float | str, gamma: float, graph: str) -> None:
    """Raise unless the settings of `graph_scores` are allowed."""
    if isinstance(tau, str):
        if tau not in THRESHOLDS:
            raise ValueError(f"tau={tau!r}: a cosine from -1 to 1, or {' or '.join(map(repr, THRESHOLDS))}.")
        tau = -1.0
    check_real("tau", tau, -1.0, 1.0, "a cosine")
    check_real("gamma", gamma, 0.0, float("inf"))
    check_choice("graph", graph, GRAPHS)
    if gamma * (1.0 - tau) > 80.0:
        raise ValueError(f"gamma={gamma:g} with tau={tau:g}: gamma * (1 - tau) must be at most 80, or exp overflows.")


def redundancy(unit: Tensor, tau: float, gamma: float, graph: str, known: Tensor | None = None) -> Tensor:
    """`graph_scores` of unit vectors (B, n, d); `known` (B, n, n) are all their cosines, where they were computed.

    Otherwise at most HELD cosines are held at a time.
    """
    B, n, _ = unit.shape
    src, dst = graph_sides(n, graph, unit.device)
    left, right = unit[:, src], unit[:, dst]
    step = left.shape[1] if known is not None else max(1, HELD // max(1, B * right.shape[1]))
    half = left.shape[1]
    sums = torch.zeros(3, B, n, dtype=torch.float32, device=unit.device)  # the left side first, then the right
    for start in range(0, half, step):
        stop = min(start + step, half)
        cosine = left[:, start:stop] @ right.mT if known is None else known[:, src][:, :, dst]
        edge = _edges(cosine, tau - TIE)
        if graph == "full":  # a token does not meet itself
            cosine = cosine.clone() if known is not None else cosine
            cosine.diagonal(offset=start, dim1=1, dim2=2).zero_()
            edge.diagonal(offset=start, dim1=1, dim2=2).zero_()
        for i in range(3):  # all cosines, the edges, the cosines at edges
            values = cosine if i == 0 else edge if i == 1 else edge.mul_(cosine)
            torch.sum(values, 2, out=sums[i, :, start:stop])
            if graph != "full":
                sums[i, :, half:] += values.sum(1)
    sums[0, :, :half] /= max(1, n - 1 if graph == "full" else n // 2)
    sums[0, :, half:] /= half
    score = _score(sums, tau, gamma)
    if graph == "full":
        return score
    scores = torch.empty_like(score)
    scores[:, src], scores[:, dst] = score[:, :half], score[:, half:]
    return scores


def _scores(features: Tensor, tau: float, gamma: float, graph: str) -> Tensor:
    """`graph_scores` for one threshold."""
    if fast := fused_for(features):
        return fast.graph_scores(features, tau=tau, gamma=gamma, graph=graph)
    with exact_float32(features.device):
        return redundancy(checked_units(features), tau, gamma, graph)


def _thresholds(features: Tensor, rule: str, graph: str) -> Tensor:
    """`graph_threshold` of arguments that were checked."""
    with exact_float32(features.device):
        unit = checked_units(features)
        counts = torch.stack([_counts(image, graph) for image in unit]) if len(unit) else unit.new_zeros(0, BINS)
        share = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
        border = (_quantile_border if rule == "quantile" else _otsu_border)(share)
        border = border.masked_fill(counts.sum(1, keepdim=True) == 0, BINS)
        return (border[:, 0] * (2 / BINS) - 1).to(torch.float32)


def _quantile_border(share: Tensor) -> Tensor:
    """(B, 1) the first border with SHARE of the pairs below it; `share` (B, BINS) are the shares of the bins."""
    last = (share.cumsum(1) < SHARE).sum(1, keepdim=True)
    return (last + 1).clamp(max=BINS).double()


def _otsu_border(share: Tensor) -> Tensor:
    """(B, 1) the border with the largest variance between what lies below and above; `share` (B, BINS)."""
    below = share.cumsum(1)
    middle = torch.arange(BINS, dtype=torch.float64, device=share.device) + 0.5
    weight = (share * middle).cumsum(1)
    between = (weight[:, -1:] * below - weight) ** 2 / (below * (1 - below)).clamp(min=1e-12)
    best = between >= between.amax(1, keepdim=True) * (1 - 1e-9)  # all borders in a gap are equally good
    places = torch.arange(1, BINS + 1, dtype=torch.float64, device=share.device)
    return ((best * places).sum(1, keepdim=True) / best.sum(1, keepdim=True)).floor()


def _counts(unit: Tensor, graph: str) -> Tensor:
    """(BINS,) how many pairs of one image's tokens (n, d) have a cosine in each bin."""
    src, dst = graph_sides(len(unit), graph, unit.device)
    left, right = unit[src], unit[dst]
    step = max(1, HELD // max(1, len(right)))
    total = torch.zeros(BINS, dtype=torch.int64, device=unit.device)
    for start in range(0, len(left), step):
        place = ((left[start : start + step] @ right.mT + (1 + TIE)) * (BINS / 2)).long().clamp(0, BINS - 1)
        if graph == "full":  # a token does not meet itself
            own = torch.ones_like(place, dtype=torch.bool)
            own.diagonal(offset=start).fill_(False)
            place = place[own]
        total += torch.bincount(place.flatten(), minlength=BINS)
    return total


def _edges(cosine: Tensor, threshold: float) -> Tensor:
    """1.0 where a cosine is at least the threshold, else 0.0."""
    if cosine.device.type == "cpu":  # ten times as fast there as by way of bool
        return torch.ge(cosine, threshold, out=torch.empty_like(cosine))
    return (cosine >= threshold).to(cosine.dtype)


def graph_sides(n: int, graph: str, device: torch.device) -> tuple[Tensor | slice, Tensor | slice]:
    """The tokens on the two sides of the graph; all are on both sides of a full one."""
    if graph == "bipartite":
        return slice(0, None, 2), slice(1, None, 2)
    if graph == "random":
        at = torch.randperm(n, generator=torch.Generator().manual_seed(0), device="cpu").to(device)
        return at[: n - n // 2], at[n - n // 2 :]
    return slice(None), slice(None)


def _score(sums: Tensor, tau: float, gamma: float) -> Tensor:
    """Redundancy (B, n) from the mean of all cosines, the number of edges and the sum of their cosines (3, B, n)."""
    mean, degree, similar = sums
    weight = similar / degree.clamp(min=1)
    return torch.where(degree > 0, degree * torch.exp(gamma * (weight - tau)), mean)

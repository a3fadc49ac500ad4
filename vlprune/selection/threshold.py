"""A threshold for the graph that comes from the image's own similarities."""

import torch
from torch import Tensor

from .checks import check_choice, check_tensor, finite, require
from .graph import GRAPHS, HELD, sides
from .numerics import TIE, exact_float32, unit_vectors

THRESHOLDS = ("otsu", "quantile")
BINS = 1024  #: of cosines from −1 to 1
SHARE = 0.75  #: of the pairs lie below the threshold "quantile"


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
    with exact_float32(features.device):
        x = features.to(torch.float32)
        unit, length = unit_vectors(x)
        require(finite("features", x, "B n d", length))
        return threshold(unit, rule, graph)


def threshold(unit: Tensor, rule: str, graph: str) -> Tensor:
    """`graph_threshold` on checked unit vectors."""
    counts = torch.stack([_counts(image, graph) for image in unit]) if len(unit) else unit.new_zeros(0, BINS)
    share = counts.double() / counts.sum(1, keepdim=True).clamp(min=1)
    below = share.cumsum(1)
    if rule == "quantile":
        last = (below < SHARE).sum(1, keepdim=True)
        border = (last + 1).clamp(max=BINS).double()
    else:
        middle = torch.arange(BINS, dtype=torch.float64, device=unit.device) + 0.5
        weight = (share * middle).cumsum(1)
        between = (weight[:, -1:] * below - weight) ** 2 / (below * (1 - below)).clamp(min=1e-12)
        best = between >= between.amax(1, keepdim=True) * (1 - 1e-9)  # all borders in a gap are equally good
        places = torch.arange(1, BINS + 1, dtype=torch.float64, device=unit.device)
        border = ((best * places).sum(1, keepdim=True) / best.sum(1, keepdim=True)).floor()
    border = border.masked_fill(counts.sum(1, keepdim=True) == 0, BINS)
    return (border[:, 0] * (2 / BINS) - 1).to(torch.float32)


def _counts(unit: Tensor, graph: str) -> Tensor:
    """(BINS,) how many pairs of one image's tokens (n, d) have a cosine in each bin."""
    src, dst = sides(len(unit), graph, unit.device)
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

"""How far a relevance map may be trusted: whether its upper end is the small side of the image."""

import torch
from torch import Tensor

from .checks import check_tensor
from .dpp import check_relevance
from .numerics import exact_float32, unit_vectors, wide

ENDS = 36  # a 36th of the tokens is compared at either end of a map: 16 of 576
RARITY = 0.25  # what the rarity of these counts beside the map's own shape
NONE, FULL = 0.1, 0.3  # evidence up to which a map is not trusted at all, and from which it is trusted fully


def relevance_evidence(relevance: Tensor, features: Tensor, *, grid: tuple[int, int] | None = None) -> Tensor:
    """What speaks for each image's relevance map: above 0 if its *upper* end is the small side of the image.

    What a question asks about is as a rule a small part of an image, and in one place. Two numbers say whether a map
    points upwards at such a part; both change their sign with the map, so that a map with the wrong sign has less than
    0, and one that means nothing is around 0. Evidence is the first plus a quarter of the second.

    - The map's shape: the mean of z_i·z_j·(z_i + z_j)/2 over all neighbours i, j on the grid, where z is the map with
      mean 0 and variance 1. It is skewness, of which only what neighbours share counts.
    - What lies there: how much rarer in the image the highest 36th of the tokens is than the lowest, where a token is
      rare if its mean cosine to all of the image is low, in standard deviations.

    Args:
        relevance: (B, n), any floating dtype, finite. B may be 0.
        features: (B, n, d), the tokens, any floating dtype, finite.
        grid: (rows, columns) of the tokens, (1, n) if not said.

    Returns:
        (B,) float32; 0 for a map that is the same everywhere. Scaling or shifting the map changes nothing.

    >>> thing = torch.zeros(1, 6, 6)
    >>> thing[:, 1:3, 2:4] = 1.0
    >>> tokens = torch.nn.functional.one_hot(thing.long()).float().view(1, 36, 2)
    >>> found = [relevance_evidence(sign * thing.view(1, 36), tokens, grid=(6, 6)) for sign in (1, -1)]
    >>> [round(float(one), 2) for one in found]
    [2.1, -2.1]
    """
    check_tensor("features", features, "B n d")
    check_relevance(features, relevance)
    n = features.shape[1]
    rows, columns = grid or (1, n)
    if rows * columns != n:
        raise ValueError(f"grid={grid}: must have as many cells as there are tokens, {n}.")
    with exact_float32(features.device):
        z = _standard(relevance)
        at = z.view(-1, rows, columns)
        shape, pairs = z.new_zeros(len(z)), 0
        for a, b in ((at[:, 1:], at[:, :-1]), (at[:, :, 1:], at[:, :, :-1])):
            shape = shape + (a * b * (a + b)).sum((1, 2)) / 2
            pairs += a.shape[1] * a.shape[2]
        unit, _ = unit_vectors(features.to(torch.float32))
        middle = unit.mean(1, keepdim=True, dtype=z.dtype).to(torch.float32)
        rarity = _standard(-(unit * middle).sum(2, dtype=z.dtype))
        order = z.argsort(dim=1, stable=True)
        ends = max(1, n // ENDS)
        ranked = rarity.gather(1, order)
        rarer = ranked[:, n - ends :].mean(1) - ranked[:, :ends].mean(1)
        flat = (z == 0).all(1)  # then the order is by index, and means nothing
        return torch.where(flat, 0.0, shape / max(pairs, 1) + RARITY * rarer).to(torch.float32)


def trusted_relevance(relevance: Tensor, trust: Tensor | float) -> Tensor:
    """Relevance as far as it is trusted, and no question for the rest: trust · relevance + (1 − trust).

    With trust 0 every token gets 1, exactly what a method has without a question; with trust 1 nothing changes.

    Args:
        relevance: (B, n), in [0, 1].
        trust: (B,) or one number, in [0, 1]; see `evidence_trust`.

    Returns:
        (B, n) float32 in [0, 1].

    >>> trusted_relevance(torch.tensor([[0.0, 1.0]]), 0.25)
    tensor([[0.7500, 1.0000]])
    """
    with torch.no_grad():
        if not isinstance(trust, Tensor):
            return relevance.to(torch.float32) if trust == 1.0 else trust * relevance.to(torch.float32) + (1.0 - trust)
        share = trust.to(torch.float32)[:, None]
        return share * relevance.to(torch.float32) + (1.0 - share)


def evidence_trust(evidence: Tensor) -> Tensor:
    """Trust in [0, 1] from evidence of any shape, of one map or the mean over many: 0 up to 0.1, 1 from 0.3 on.

    >>> evidence_trust(torch.tensor([-1.0, 0.1, 0.2, 2.0])).tolist()
    [0.0, 0.0, 0.5, 1.0]
    """
    return ((evidence - NONE) / (FULL - NONE)).clamp(0.0, 1.0)


def _standard(x: Tensor) -> Tensor:
    """(B, n) with mean 0 and variance 1 in each row, wide; 0 where all values are equal but for rounding."""
    x = x.to(torch.float32).to(wide(x.device))
    size = x.abs().amax(1, keepdim=True)
    x = x - x.mean(1, keepdim=True)
    span = x.abs().amax(1, keepdim=True)
    x = torch.where(span > 1e-6 * size, x / span.clamp(min=torch.finfo(x.dtype).tiny), 0.0)  # before it is squared
    return x / x.square().mean(1, keepdim=True).sqrt().clamp(min=torch.finfo(x.dtype).tiny)

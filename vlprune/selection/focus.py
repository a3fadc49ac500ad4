"""Whether a relevance map points to something small."""

import torch
from torch import Tensor

from .checks import check_tensor
from .numerics import wide

SMALL, LARGE = 1 / 16, 1 / 8  # the share of the tokens up to which what is relevant is small, and from which it is not
EDGE = 1 / 8  # tokens count as relevant from half a map's height on, gradually over this much of it


def relevance_focus(relevance: Tensor) -> Tensor:
    """How far each map points to a small part of the image: 1 for text on a sign, 0 for a dog that fills a quarter.

    It goes by the share of the tokens whose relevance is more than ½: 1 up to a sixteenth of them, 0 from an eighth on,
    in between a straight line. A token counts gradually, from 7/16 to 9/16, so that rounding changes little.

    Args:
        relevance: (B, n), any floating dtype, in [0, 1], as `relevance_scores` gives it. B may be 0.

    Returns:
        (B,) float32 in [0, 1].

    >>> maps = torch.zeros(3, 64)
    >>> maps[0, :4], maps[1, :6], maps[2, :8] = 1.0, 1.0, 1.0
    >>> relevance_focus(maps).tolist()
    [1.0, 0.5, 0.0]
    """
    check_tensor("relevance", relevance, "B n")
    relevant = ((relevance.to(wide(relevance.device)) - 0.5) / EDGE + 0.5).clamp(0.0, 1.0)
    return ((LARGE - relevant.mean(1)) / (LARGE - SMALL)).clamp(0.0, 1.0).to(torch.float32)

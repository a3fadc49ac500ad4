"""How much each token has to do with the question, by a plain dot product: the length of a token counts."""

import torch
from torch import Tensor

from .checks import check_tensor, finite, require
from .numerics import wide
from .relevance import check_query, pool


def dot_scores(features: Tensor, query: Tensor, *, sign: int = 1) -> Tensor:
    """The dot product of each token with the question's mean embedding, neither normalised nor scaled.

    Args:
        features: (B, n, d), any floating dtype. B may be 0.
        query: (B, l, d), the question's tokens.
        sign: 1 or −1, as in `relevance_scores`.

    Returns:
        (B, n) float32.

    >>> tokens = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [3.0, 1.0]]])
    >>> dot_scores(tokens, torch.tensor([[[2.0, 0.0]]])).tolist()
    [[2.0, 0.0, 6.0]]
    """
    check_tensor("features", features, "B n d")
    check_query(features, query, None, sign)
    with torch.no_grad():
        x = features.to(wide(features.device))
        pooled, conditions = pool(query, None)
        scores = (sign * (x * pooled).sum(2)).to(torch.float32)
        require(finite("features", x, "B n d", scores), *conditions)
        return scores

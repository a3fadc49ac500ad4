"""QCRS: how relevant each token is to the question, by cosine, or by a plain dot product."""

import numpy as np
import torch
from torch import Tensor

from .checks import Condition, check_choice, check_mask, check_tensor, finite, require
from .dispatch import fused_for
from .numerics import TIE, divided, exact_float32, lengths, unit_vectors, wide


def relevance_scores(features: Tensor, query: Tensor, *, query_mask: Tensor | None = None, sign: int = 1) -> Tensor:
    """Relevance of each token to the question: the cosine to its mean embedding, min-max scaled per image.

    When all raw cosines of an image are equal (within 2e-6) the question tells nothing apart: every token
    gets 1, and a kernel made of it falls back to plain diversity.

    Args:
        features: (B, n, d), any floating dtype. B may be 0.
        query: (B, l, d), the question's tokens.
        query_mask: (B, l) bool, True for the tokens that count; what the others hold is never looked at.
        sign: 1, or −1 for encoders whose referent patches are the *least* similar (CLIP's layer −2).

    Returns:
        (B, n) float32 in [0, 1].

    >>> tokens = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    >>> relevance_scores(tokens, torch.tensor([[[2.0, 0.0]]]))
    tensor([[1.0000, 0.0000, 0.7071]])
    """
    check_tensor("features", features, "B n d")
    check_query(features, query, query_mask, sign)
    if fast := fused_for(features):
        return fast.relevance_scores(features, query, query_mask=query_mask, sign=sign)
    with exact_float32(features.device):
        x = features.to(torch.float32)
        length = lengths(x)
        pooled, conditions = pool(query, query_mask)
        require(finite("features", x, "B n d", length), *conditions)
        return relevance(x, length, pooled, sign)


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


def check_query(features: Tensor, query: Tensor, query_mask: Tensor | None, sign: int) -> None:
    """Raise unless the query fits the features; its values are checked by the conditions of `pool`."""
    B, _, d = features.shape
    check_tensor("query", query, "B l d", like=features, B=B, d=d)
    check_choice("sign", sign, (1, -1))
    if query_mask is not None:
        check_mask("query_mask", query_mask, "B l", like=features, B=B, l=query.shape[1])


def pool(query: Tensor, query_mask: Tensor | None) -> tuple[Tensor, list[Condition]]:
    """The mean query embedding (B, 1, d), and the conditions that it is finite and of at least one token."""
    q = query.to(torch.float32)
    if query_mask is None:
        mean = q.mean(1, keepdim=True, dtype=wide(q.device))
        return mean, [finite("query", q, "B l d", mean)]
    count = query_mask.sum(1)
    q = q.masked_fill(~query_mask[:, :, None], 0.0)  # not a product: padding may hold NaN
    mean = q.sum(1, keepdim=True, dtype=wide(q.device)) / count.clamp(min=1)[:, None, None]

    def words() -> str:
        image = int((count == 0).nonzero()[0])
        return f"query_mask without any True at batch {image}: must leave at least one query token per image."

    return mean, [finite("query", q, "B l d", mean), ((count > 0).all(), words)]


def relevance(x: Tensor, length: Tensor, pooled: Tensor, sign: int) -> Tensor:
    """`relevance_scores` of vectors (B, n, d), their lengths (B, n, 1) and the pooled query (B, 1, d)."""
    return (relevance_on_host if x.device.type == "cpu" else relevance_on_device)(x, length, pooled, sign)


def relevance_on_device(x: Tensor, length: Tensor, pooled: Tensor, sign: int) -> Tensor:
    """`relevance` on an accelerator, without waiting for it."""
    direction, _ = unit_vectors(pooled.to(torch.float32))
    # products round alike on every device and the sum is wide: min-max would stretch any noise
    raw = sign * (divided(x, length) * direction).sum(2, dtype=wide(x.device))
    low, high = raw.amin(1, keepdim=True), raw.amax(1, keepdim=True)
    span = high - low
    return torch.where(span > TIE, (raw - low) / span.clamp(min=TIE), 1.0).to(torch.float32)


def relevance_on_host(x: Tensor, length: Tensor, pooled: Tensor, sign: int) -> Tensor:
    """`relevance` on a CPU: products in float64 too, no unit vectors, and in numpy, whose calls cost less."""
    tiny, direction = np.finfo(np.float32).tiny, pooled.to(torch.float64).mT
    raw = torch.bmm(x.to(torch.float64), direction)[:, :, 0].numpy()
    raw *= sign / np.maximum(np.linalg.norm(direction.numpy(), axis=1), tiny)
    raw /= np.maximum(length[:, :, 0].numpy(), tiny)
    low, high = raw.min(axis=1, keepdims=True), raw.max(axis=1, keepdims=True)
    span = high - low
    scaled = np.where(span > TIE, (raw - low) / np.maximum(span, TIE), 1.0)
    return torch.from_numpy(scaled.astype(np.float32))

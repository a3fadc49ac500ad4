"""What a selection is."""

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Selection:
    """The tokens a method keeps, and the scores it kept them by. B images, n tokens, m kept.

    kept:        (B, m) int64, in the order in which they stand in the prompt, which is ascending for nearly all.
    order:       (B, k) int64, tokens in order of choice, or None for a method that has no order.
    redundancy:  (B, n) float32, high where other tokens say the same, or None.
    relevance:   (B, n) float32 in [0, 1], high where the question looks, or None.
    scores:      (B, n) float32, what the method ranked by, where neither of these two says it, or None.
    embeddings:  (B, m, d), features that take the place of the kept tokens' own, or None to keep those.
    gains:       (B, k) float32, what each choice of `order` added, or None where nobody needs it.
    sizes:       how many of each image's m are meant, where images keep different numbers, or None for all m.

    >>> import torch
    >>> Selection(kept=torch.tensor([[0, 2]])).kept.tolist()
    [[0, 2]]
    """

    kept: Tensor
    order: Tensor | None = None
    redundancy: Tensor | None = None
    relevance: Tensor | None = None
    scores: Tensor | None = None
    embeddings: Tensor | None = None
    gains: Tensor | None = None
    sizes: tuple[int, ...] | None = None

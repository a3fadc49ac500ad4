"""Which words of the question speak of the image: SparseVLM's raters."""

import torch
from torch import Tensor


def rater_weights(visual: Tensor, text: Tensor, real: Tensor) -> Tensor:
    """(B, T) equal weights, summing to 1, on the text tokens that the visual tokens are closest to.

    `visual` (B, n, d) and `text` (B, T, d) are the LLM's input embeddings, `real` (B, T) is False where `text` is
    padding. A token is a rater if its share of `softmax(visual @ text.T)` over the text, averaged over the visual
    tokens, lies above the mean of the real text tokens. Where none does (all are equal), all are raters.

    >>> visual, text = torch.eye(2)[None], torch.tensor([[[3.0, 0.0], [0.0, 0.0], [0.0, 3.0]]])
    >>> rater_weights(visual, text, torch.ones(1, 3, dtype=torch.bool))
    tensor([[0.5000, 0.0000, 0.5000]])
    """
    logits = visual.float() @ text.float().transpose(1, 2)
    shares = logits.masked_fill(~real[:, None], -torch.inf).softmax(dim=-1).mean(dim=1).masked_fill(~real, 0.0)
    count = real.sum(dim=1, keepdim=True)
    chosen = real & (shares * count > shares.sum(dim=1, keepdim=True))
    chosen = torch.where(chosen.any(dim=1, keepdim=True), chosen, real)
    return chosen / chosen.sum(dim=1, keepdim=True)

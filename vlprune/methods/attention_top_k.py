"""Attention alone: the tokens that the vision tower itself looks at."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vlprune.methods.base import ScoreMethod
from vlprune.methods.registry import register_method
from vlprune.types import Query, TokenView


@register_method
@dataclass(frozen=True)
class AttentionTopK(ScoreMethod):
    """The tokens that receive the most attention in the vision tower, from its CLS token where it has one (FasterVLM).

    Zhang et al., *[CLS] Attention is All You Need for Training-Free Visual Token Pruning: Make VLM Inference Faster*,
    arXiv:2412.01818. In towers without a CLS token: the attention received from all tokens, on average.

    >>> import torch
    >>> from vlprune.types import TokenView
    >>> view = TokenView(torch.zeros(1, 4, 2), (2, 2), attention=torch.tensor([[0.1, 0.4, 0.2, 0.3]]))
    >>> AttentionTopK(keep=2).select(view, None).kept.tolist()
    [[1, 3]]
    """

    name: ClassVar[str] = "attention_top_k"
    needs_attention: ClassVar[bool] = True

    def score(self, view: TokenView, query: Query | None) -> Tensor:
        return self.require(view, "attention")

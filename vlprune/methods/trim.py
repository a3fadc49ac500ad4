"""TRIM: the tokens that CLIP finds in the question, and the mean of all others."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vlprune.methods.base import QueryMethod
from vlprune.methods.registry import register_method
from vlprune.methods.settings import check_reads_question
from vlprune.selection import dot_scores, group_means, highest, remaining
from vlprune.selection.numerics import TIE, take
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class TRIM(QueryMethod):
    """The m − 1 tokens closest to the question, and last the mean of all others.

    Song et al., *Less is More: A Simple yet Effective Token Reduction Method for Efficient Multi-modal LLMs*,
    COLING 2025, arXiv:2409.10994. Closeness is the plain dot product in CLIP's space, negated (`sign`). The others
    are averaged before the projector. With `adaptive`, an image keeps the tokens whose closeness, after a softmax,
    lies above Q3 + 1.5 · IQR, and the mean of the others; `keep` is then the most it may keep.
    `relevance` and `sign` are as in `Script`; the paper's is "clip".

    >>> TRIM(**TRIM.presets["adaptive"])
    TRIM(keep=1.0, relevance='auto', sign=None, pooling='auto', adaptive=True)
    """

    adaptive: bool = False

    name: ClassVar[str] = "trim"
    reorders: ClassVar[bool] = True
    merges: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {"adaptive": {"keep": 1.0, "adaptive": True}}

    def __post_init__(self) -> None:
        super().__post_init__()
        check_reads_question(self.name, self.relevance)
        if not isinstance(self.adaptive, bool):
            raise ValueError(f"adaptive={self.adaptive!r}: choose from True, False.")

    def select(self, view: TokenView, query: Query | None) -> Selection:
        assert query is not None
        n, images = view.n, view.features.shape[0]
        m = self.count(n)
        closeness = dot_scores(query.image, query.text, sign=query.sign)
        scores = closeness.softmax(1)
        if n == 1 or (m == n and not self.adaptive):
            everything = torch.arange(n, device=view.features.device).repeat(images, 1)
            return Selection(kept=everything, order=highest(closeness, n), scores=scores)
        tower, project = self.require(view, "tower"), self.require(view, "project")
        if not self.adaptive:
            order = highest(closeness, m - 1)
            kept, embeddings = _top_and_mean_of_rest(order, view.features, tower, project)
            return Selection(kept=kept, order=order, embeddings=embeddings, scores=scores)
        sizes = tuple(min(outliers + 1, m) for outliers in _count_outliers(scores).tolist())
        order = highest(closeness, max(sizes) - 1)
        places = torch.arange(max(sizes), device=order.device)
        rows = []
        for b, size in enumerate(sizes):
            one = slice(b, b + 1)
            row = _top_and_mean_of_rest(order[one, : size - 1], view.features[one], tower[one], project)
            rows.append([part[:, places.clamp(max=size - 1)] for part in row])  # the last again, up to the longest
        kept, embeddings = (torch.cat(parts) for parts in zip(*rows))
        return Selection(kept=kept, order=order, embeddings=embeddings, sizes=sizes, scores=scores)


def _top_and_mean_of_rest(
    top: Tensor, features: Tensor, tower: Tensor, project: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """Kept tokens and embeddings: the top ones (B, k), ascending, then the mean of the others in their last place."""
    top, n = top.sort(dim=1).values, features.shape[1]
    rest = remaining(top, n)
    groups = torch.zeros(features.shape[:2], dtype=torch.int64, device=features.device).scatter_(1, top, -1)
    mean = project(group_means(tower, groups, 1).to(tower.dtype)).to(features.dtype)
    return torch.cat([top, rest[:, -1:]], 1), torch.cat([take(features, top), mean], 1)


def _count_outliers(scores: Tensor) -> Tensor:
    """(B,) the number of scores (B, n) above Q3 + 1.5 · IQR; equal scores are never above it."""
    low, high = scores.quantile(scores.new_tensor([0.25, 0.75]), dim=1)
    bound = high + 1.5 * (high - low)
    return (scores > bound[:, None] * (1 + TIE)).sum(1)

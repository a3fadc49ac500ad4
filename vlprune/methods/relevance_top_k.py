"""Relevance alone: what the question is about, however often it says the same."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vlprune.methods.base import QueryMethod, ScoreMethod
from vlprune.methods.registry import register_method
from vlprune.selection import relevance_scores
from vlprune.types import Query, TokenView


@register_method
@dataclass(frozen=True)
class RelevanceTopK(QueryMethod, ScoreMethod):
    """The tokens that are most relevant to the question.

    Script's relevance without its diversity. `relevance` and `sign` are as in `Script`.

    >>> RelevanceTopK(sign=2)
    Traceback (most recent call last):
    ...
    ValueError: sign=2: choose from None, 1, -1.
    """

    name: ClassVar[str] = "relevance_top_k"
    shown_as: ClassVar[str | None] = "relevance"

    def score(self, view: TokenView, query: Query | None) -> Tensor:
        assert query is not None
        return relevance_scores(query.image, query.text, sign=query.sign)

"""Relevance alone: what the question is about, however often it says the same."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from vlprune.methods.base import QueryMethod
from vlprune.selection import highest, relevance_scores
from vlprune.types import Selection

if TYPE_CHECKING:
    from vlprune.types import Query, TokenView


@dataclass(frozen=True)
class RelevanceTopK(QueryMethod):
    """The tokens that are most relevant to the question.

    Script's relevance without its diversity. `relevance` and `sign` are as in `Script`.

    >>> RelevanceTopK(sign=2)
    Traceback (most recent call last):
    ...
    ValueError: sign=2: choose from None, 1, -1.
    """

    name: ClassVar[str] = "relevance_top_k"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        assert query is not None
        relevance = relevance_scores(query.image, query.text, sign=query.sign)
        order = highest(relevance, self.count(view.n))
        return Selection(kept=order.sort(dim=1).values, order=order, relevance=relevance)

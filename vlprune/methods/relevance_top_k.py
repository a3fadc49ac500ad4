"""Relevance alone: what the question is about, however often it says the same."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from vlprune.methods.base import QueryMethod, ScoreMethod
from vlprune.methods.registry import register_method
from vlprune.methods.settings import check_reads_question
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_reads_question(self.name, self.relevance)

    def score(self, view: TokenView, query: Query | None) -> Tensor:
        return self.relevance_scores(view, query)

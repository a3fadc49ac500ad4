"""The base classes of methods: a method is a frozen dataclass whose fields are its settings, `select` is its code."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vlprune.budget import Budget
from vlprune.errors import MethodError
from vlprune.methods.settings import check_query_settings
from vlprune.selection import highest, relevance_scores
from vlprune.types import Query, Selection, TokenView

#: The fields that a view may lack, as an error names them.
_OPTIONAL_FIELDS = {
    "tower": "the vision tower's hidden states",
    "attention": "the attention inside the vision tower",
    "keys": "the keys of the vision tower's attention",
    "project": "the projector from the vision tower to the LLM",
}


class Accounting(NamedTuple):
    """A budget in both of the ways papers count it, in visual tokens per image.

    `entering` are the tokens that enter the LLM, `layer_average` is the mean of those that each of its layers sees.
    """

    entering: int
    layer_average: float


@dataclass(frozen=True)
class Method(ABC):
    """Chooses visual tokens. `keep` is a number of tokens per image or video, a ratio in (0, 1], or a `Budget`.

    >>> from vlprune import Random
    >>> Random(keep=0.5).count(576)
    288
    """

    keep: int | float | Budget = 64

    name: ClassVar[str]
    #: Whether `select` looks at the question. If so, a `relevance` field may name its source: "llm" or "clip".
    needs_query: ClassVar[bool] = False
    #: Whether `select` looks at the view's `attention`, `keys` or `cls`, which are not computed otherwise.
    needs_attention: ClassVar[bool] = False
    #: Whether the kept tokens may stand in another order than before.
    reorders: ClassVar[bool] = False
    #: Whether new tokens are made of several.
    merges: ClassVar[bool] = False
    #: Whether the number of kept tokens may follow the image (`Budget(adaptive=...)`).
    adapts: ClassVar[bool] = False
    #: Published settings by name, for `get_method(..., preset=)`.
    presets: ClassVar[dict[str, dict[str, Any]]] = {}

    def __post_init__(self) -> None:
        Budget.of(self.keep)

    @property
    def reads_question(self) -> bool:
        """Whether the method with these settings looks at the question."""
        return self.needs_query

    def count(self, n: int) -> int:
        """The number of tokens to keep of an image of `n` tokens."""
        return Budget.of(self.keep).count(n)

    def accounting(self, n: int, layers: int) -> Accounting:
        """The budget for an image of `n` tokens in an LLM of `layers` layers, counted both ways.

        With a quota per tile or frame: for one tile or frame of `n` tokens.

        >>> from vlprune import Random
        >>> Random(keep=64).accounting(576, layers=32)
        Accounting(entering=64, layer_average=64.0)
        """
        m = self.count(n)
        return Accounting(m, float(m))

    @abstractmethod
    def select(self, view: TokenView, query: Query | None) -> Selection:
        """Choose `count(view.n)` tokens of each image of the view; `query` is None unless `needs_query`.

        `keep` is a number of tokens here, whatever budget the user gave. The answer for one image must not depend
        on the others in the view.
        """

    def __add__(self, then: object) -> "Method":
        """This method before the LLM, and then another inside it, which sees what this one left.

        >>> from vlprune import FastV, Random
        >>> (Random(keep=192) + FastV(keep=64)).accounting(576, layers=32)
        Accounting(entering=192, layer_average=72.0)
        >>> FastV(keep=64) + Random(keep=192)
        Traceback (most recent call last):
        ...
        TypeError: fastv + random: the first must choose before the LLM and the second inside it, as in script + fastv.
        """
        return then.follow(self) if isinstance(then, Method) else NotImplemented

    def follow(self, first: "Method") -> "Method":
        """The method that chooses by `first`, then by this one; `TypeError` unless this one works inside the LLM."""
        raise TypeError(
            f"{first.name} + {self.name}: the first must choose before the LLM and the second inside it, "
            "as in script + fastv."
        )

    def require(self, view: TokenView, field: str) -> Any:
        """A field of the view that the method cannot do without; `ValueError` if the model did not give it."""
        value = getattr(view, field)
        if value is None:
            missing = _OPTIONAL_FIELDS[field]
            raise ValueError(f"{self.name} needs {missing} (view.{field}), which this model did not give.")
        return value


@dataclass(frozen=True)
class ScoreMethod(Method):
    """A method that only ranks: a subclass writes `score`, and the tokens with the highest scores are kept.

    >>> import torch
    >>> class Longest(ScoreMethod):
    ...     name = "longest"
    ...     def score(self, view, query):
    ...         return view.features.norm(dim=2)
    >>> view = TokenView(torch.tensor([[[1.0], [4.0], [2.0], [3.0]]]), grid=(2, 2))
    >>> Longest(keep=2).select(view, None).kept.tolist()
    [[1, 3]]
    """

    #: The field of the `Selection` that shows the scores, "scores" or "relevance"; None shows them nowhere.
    shown_as: ClassVar[str | None] = "scores"

    @abstractmethod
    def score(self, view: TokenView, query: Query | None) -> Tensor:
        """(B, n) a score for each token; the higher, the better."""

    def select(self, view: TokenView, query: Query | None) -> Selection:
        """Keep the `count(view.n)` tokens with the highest scores; on a tie the lower index."""
        scores = self.score(view, query)
        expected = tuple(view.features.shape[:2])
        if not isinstance(scores, Tensor) or tuple(scores.shape) != expected:
            found = f"shape {tuple(scores.shape)}" if isinstance(scores, Tensor) else f"type {type(scores).__name__}"
            raise MethodError(
                f"method {self.name!r}: score must return a tensor of shape {expected}; it is of {found}."
            )
        order = highest(scores, self.count(view.n))
        return Selection.from_order(order, **({self.shown_as: scores} if self.shown_as else {}))


@dataclass(frozen=True)
class QueryMethod(Method):
    """A method that asks how much each token has to do with the question.

    `relevance` says whose embeddings compare question and tokens: "clip" (needs `attach(..., dual_encoder=)`), "llm",
    "auto", which is "clip" where there is a dual encoder, or "none": every token is equally relevant, and the question
    is not looked at. `sign` overrides the sign of the similarity; by default it is the encoder's own, −1 for CLIP.
    `pooling` says how the question's tokens become one vector: "mean" of their embeddings, or "auto", which is the
    dual encoder's own sentence embedding where there is one, and the mean else.
    """

    relevance: str = "auto"
    sign: int | None = None
    pooling: str = "auto"

    needs_query: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_query_settings(self.relevance, self.sign, self.pooling)

    @property
    def reads_question(self) -> bool:
        """Whether the method with these settings looks at the question."""
        return self.relevance != "none"

    def relevance_scores(self, view: TokenView, query: Query | None) -> Tensor:
        """(B, n) each token's relevance to the question in [0, 1]; all 1 without a question (`relevance="none"`)."""
        if query is None:
            return view.features.new_ones(view.features.shape[:2], dtype=torch.float32)
        return relevance_scores(query.image, query.text, sign=query.sign)

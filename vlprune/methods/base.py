"""What a method is: a frozen dataclass whose fields are its settings and whose `select` is its code."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from vlprune.budget import Budget
from vlprune.types import Selection

if TYPE_CHECKING:
    from vlprune.types import Query, TokenView

#: What a view may lack, as an error names it.
_GIFTS = {
    "tower": "the vision tower's hidden states",
    "attention": "the attention inside the vision tower",
    "keys": "the keys of the vision tower's attention",
    "project": "the projector from the vision tower to the LLM",
}


class Accounting(NamedTuple):
    """A budget in both of the ways papers count it, in visual tokens per image.

    `entering` are the tokens that enter the LLM, `layer_average` the mean of those that each of its layers sees.
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
    #: Whether `select` looks at the question. Where it does, a `relevance` field may name its source: "llm" or "clip".
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

    def count(self, n: int) -> int:
        """How many of an image's `n` tokens to keep."""
        return Budget.of(self.keep).count(n)

    def accounting(self, n: int, layers: int) -> Accounting:
        """What the budget comes to for an image of `n` tokens in an LLM of `layers` layers.

        With a quota per tile or frame: for one tile or frame of `n` tokens.

        >>> from vlprune import Random
        >>> Random(keep=64).accounting(576, layers=32)
        Accounting(entering=64, layer_average=64.0)
        """
        m = self.count(n)
        return Accounting(m, float(m))

    def __add__(self, other: object) -> Method:
        """This method before the LLM, then one inside it, which sees what this one left.

        >>> from vlprune import FastV, Random
        >>> (Random(keep=192) + FastV(keep=64)).accounting(576, layers=32)
        Accounting(entering=192, layer_average=72.0)
        """
        from vlprune.methods.in_llm import InLLMMethod, TwoStage

        if isinstance(self, (InLLMMethod, TwoStage)) or not isinstance(other, InLLMMethod):
            return NotImplemented
        return TwoStage(self.keep, self, other)

    @abstractmethod
    def select(self, view: TokenView, query: Query | None) -> Selection:
        """Choose `count(view.n)` tokens of each image of the view; `query` is None unless `needs_query`.

        `keep` is a number of tokens here, whatever budget the user gave. The answer for one image must not depend
        on the others in the view.
        """

    def given(self, view: TokenView, field: str) -> Any:
        """A field of the view that the method cannot do without."""
        value = getattr(view, field)
        if value is None:
            raise ValueError(f"{self.name} needs {_GIFTS[field]} (view.{field}), which this model did not give.")
        return value


@dataclass(frozen=True)
class QueryMethod(Method):
    """A method that asks how much each token has to do with the question.

    `relevance` says whose embeddings compare question and tokens: "clip" (needs `attach(..., dual_encoder=)`), "llm",
    or "auto", which is "clip" where there is a dual encoder. `sign` overrides the sign of the similarity; by default
    it is the encoder's own, −1 for CLIP.
    """

    relevance: str = "auto"
    sign: int | None = None

    needs_query: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        for field, allowed in (("relevance", ("auto", "llm", "clip")), ("sign", (None, 1, -1))):
            value = getattr(self, field)
            if value not in allowed or isinstance(value, bool):
                raise ValueError(f"{field}={value!r}: choose from {', '.join(map(repr, allowed))}.")

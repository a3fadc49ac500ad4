"""Methods that drop visual tokens between the layers of the LLM."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vlprune.budget import Budget
from vlprune.methods.base import Accounting, Method
from vlprune.types import Selection

if TYPE_CHECKING:
    from vlprune.types import Query, TokenView

#: The depth that published layers are counted in.
PUBLISHED_DEPTH = 32


class Cut(NamedTuple):
    """What a stage leaves of `B` images: the tokens `kept` (B, m), ascending, and those that become something new.

    The `centres` (B, c) stay too, behind the kept ones, with the states `merged` (B, c, d) in place of their own.
    """

    kept: Tensor
    centres: Tensor | None = None
    merged: Tensor | None = None


class Step(NamedTuple):
    """One stage for images of one size: before `layer`, `keep` tokens stay, and `merged` ones stand for others."""

    layer: int
    keep: int
    merged: int


@dataclass(frozen=True)
class InLLMMethod(Method):
    """A method that drops tokens inside the LLM: all that enter are seen by the first layers, and fewer by later ones.

    `keep` is what the last layers see. A subclass says in `stages` where the cuts are; by default each keeps the
    tokens that the last token of the prompt attends to most. Attention is computed anew for the rows that are looked
    at, from queries and keys, so that every attention implementation will do.

    >>> from vlprune import PyramidDrop
    >>> PyramidDrop(keep=72).steps(576, layers=32)[0]
    Step(layer=8, keep=288, merged=0)
    """

    #: Whether kept tokens keep their positions ("original") or close the gaps ("renumbered"); m-RoPE keeps them.
    positions: ClassVar[str] = "original"
    #: Whether the attention that a cut goes by is that of the layer after the cut; else of the layer before it.
    score_from_next_layer: ClassVar[bool] = False
    #: Whether `weigh` chooses the text tokens whose attention counts; else it is the prompt's last token alone.
    uses_raters: ClassVar[bool] = False

    @abstractmethod
    def stages(self, n: int, layers: int) -> tuple[tuple[int, int], ...]:
        """(layer, tokens kept) of each cut in an LLM of so many layers, for an image of `n` tokens.

        A cut is made before that layer, numbered from 0. The layers must not depend on `n`.
        """

    def weigh(self, visual: Tensor, text: Tensor, real: Tensor) -> Tensor:
        """(B, T) how much each text token's attention counts, from the input embeddings of image and text."""
        raise NotImplementedError

    def merged(self, dropped: int) -> int:
        """How many tokens stand in for the `dropped` ones."""
        return 0

    def cut(self, scores: Tensor, states: Tensor, keep: int) -> Cut:
        """Keep `keep` of the tokens, whose attention is `scores` (B, n) and whose hidden states are (B, n, d)."""
        return Cut(highest(scores, keep))

    def select(self, view: TokenView, query: Query | None) -> Selection:
        """All of them: nothing is dropped before the LLM."""
        every = torch.arange(view.n, device=view.features.device).expand(len(view.features), -1)
        return Selection(kept=every)

    def steps(self, n: int, layers: int) -> tuple[Step, ...]:
        """What each stage leaves of an image of `n` tokens."""
        steps = []
        for layer, keep in sorted(dict(self.stages(n, layers)).items()):
            if not 1 <= layer < layers:
                raise ValueError(f"{self.name} cuts before layer {layer}: the LLM has {layers}, choose from 1.")
            step = Step(layer, min(keep, n), self.merged(n - keep) if keep < n else 0)
            n = step.keep + step.merged
            steps.append(step)
        return tuple(steps)

    def accounting(self, n: int, layers: int) -> Accounting:
        """What the budget comes to for an image of `n` tokens in an LLM of `layers` layers."""
        return Accounting(n, layer_average(n, self.steps(n, layers), layers))


@dataclass(frozen=True)
class TwoStage(Method):
    """A method before the LLM, and then one inside it, which sees what the first left.

    >>> from vlprune import FastV, Random
    >>> (Random(keep=192) + FastV(keep=64)).name
    'random+fastv'
    """

    first: Method = None  # type: ignore[assignment]
    then: InLLMMethod = None  # type: ignore[assignment]

    @property
    def name(self) -> str:  # type: ignore[override]
        return f"{self.first.name}+{self.then.name}"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        return self.first.select(view, query)

    def accounting(self, n: int, layers: int) -> Accounting:
        """What both budgets come to together."""
        return self.then.accounting(self.first.accounting(n, layers).entering, layers)


def split_stages(method: Method) -> tuple[Method, InLLMMethod | None]:
    """What works before the LLM, and what inside it, if anything does."""
    if isinstance(method, TwoStage):
        return method.first, method.then
    if isinstance(method, InLLMMethod):
        return replace(method, keep=1.0), method
    return method, None


def highest(scores: Tensor, m: int) -> Tensor:
    """(B, m) the indices of the highest of `scores` (B, n), ascending; ties go to the lower index.

    >>> highest(torch.tensor([[1.0, 3.0, 2.0, 3.0]]), 2)
    tensor([[1, 3]])
    """
    return scores.argsort(dim=1, descending=True, stable=True)[:, :m].sort(dim=1).values


def scaled(published: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Layers of a model of 32, in a model of `layers`: at the same fraction of its depth, the first at 1 or later.

    >>> scaled((2, 6, 15), 32), scaled((2, 6, 15), 28), scaled((2,), 4)
    ((2, 6, 15), (2, 5, 13), (1,))
    """
    return tuple(min(max(1, int(layer * layers / PUBLISHED_DEPTH + 0.5)), layers - 1) for layer in published)


def falling(n: int, keep: int | float | Budget, count: int) -> tuple[int, ...]:
    """From `n` tokens to `keep` in `count` equal ratios.

    >>> falling(576, 0.125, 3), falling(576, 64, 3)
    ((288, 144, 72), (277, 133, 64))
    """
    budget = Budget.of(keep)
    ratio = budget.ratio if budget.ratio is not None else budget.count(n) / n
    return tuple(max(1, int(n * ratio ** (i / count) + 0.5 + 1e-9)) for i in range(1, count + 1))


def layer_average(n: int, steps: tuple[Step, ...], layers: int) -> float:
    """The mean number of tokens that a layer sees, if `n` enter.

    >>> layer_average(576, (Step(2, 64, 0),), layers=32)
    96.0
    """
    ends = [*(step.layer for step in steps), layers]
    sizes = [n, *(step.keep + step.merged for step in steps)]
    begins = [0, *ends[:-1]]
    return sum(size * (end - begin) for size, begin, end in zip(sizes, begins, ends)) / layers


def check_layers(name: str, value: Any, count: int | None = None) -> None:
    """Raise `ValueError` unless `value` is None or ascending layer numbers from 1 on, `count` of them."""
    good = value is None or (
        isinstance(value, tuple)
        and all(isinstance(layer, int) and not isinstance(layer, bool) for layer in value)
        and list(value) == sorted(set(value))
        and all(layer >= 1 for layer in value)
        and len(value) == (count or len(value) or 1)
    )
    if not good:
        many = "layers" if count is None else f"{count} layer" + ("s" if count > 1 else "")
        raise ValueError(f"{name}={value!r}: pass {many} to cut before, ascending and from 1, or None.")

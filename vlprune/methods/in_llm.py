"""Methods that drop visual tokens between the layers of the LLM."""

from abc import abstractmethod
from bisect import bisect_left
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vlprune.budget import Budget
from vlprune.methods.base import Accounting, Method
from vlprune.selection.top_k import best_first
from vlprune.types import Query, Selection, TokenView

#: The number of layers of the LLM that papers name their layers for.
PUBLISHED_DEPTH = 32


class CutResult(NamedTuple):
    """The tokens that one cut leaves of `B` images: `kept` (B, m), ascending, and `centres` (B, c) behind them.

    The centres get the states `merged` (B, c, d) in place of their own. Both are None where nothing is merged.
    """

    kept: Tensor
    centres: Tensor | None = None
    merged: Tensor | None = None


class LayerBudget(NamedTuple):
    """What one cut leaves of an image: before `layer`, `keep` tokens stay, and `merged` ones stand for others."""

    layer: int
    keep: int
    merged: int


@dataclass(frozen=True)
class InLLMMethod(Method):
    """A method that drops tokens inside the LLM: its first layers see all that enter, later ones see fewer.

    `keep` is what the last layers see; `Budget(layer_average=64)` says instead what all layers see on average. A
    subclass says in `cut_schedule` where the cuts are; by default each keeps the tokens that the last token of the
    prompt attends to most. The attention is computed from queries and keys for the
    rows that are needed, so that the LLM may use any attention implementation.

    >>> from vlprune import Budget, FastV, PyramidDrop
    >>> PyramidDrop(keep=72).layer_budgets(576, layers=32)[0]
    LayerBudget(layer=8, keep=288, merged=0)
    >>> FastV(keep=Budget(layer_average=64)).layer_budgets(576, layers=32)
    (LayerBudget(layer=2, keep=30, merged=0),)
    """

    #: Whether kept tokens keep their positions ("original") or close the gaps ("renumbered"); m-RoPE keeps them.
    positions: ClassVar[str] = "original"
    #: Whether a cut goes by the attention of the layer after it; else by that of the layer before it.
    score_from_next_layer: ClassVar[bool] = False
    #: Whether `text_weights` says which text tokens' attention counts; else the prompt's last token alone counts.
    uses_raters: ClassVar[bool] = False

    @abstractmethod
    def cut_schedule(self, n: int, layers: int) -> tuple[tuple[int, int], ...]:
        """(layer, tokens kept) of each cut in an LLM of `layers` layers, for an image of `n` tokens.

        A cut is made before that layer, numbered from 0. The layers must not depend on `n`.
        """

    def text_weights(self, visual: Tensor, text: Tensor, real: Tensor) -> Tensor:
        """(B, T) the weight of each text token's attention, from the input embeddings of image and text.

        `visual` is (B, n, d), `text` (B, T, d), and `real` (B, T) is False where `text` is padding.
        """
        raise NotImplementedError

    def merged_count(self, dropped: int) -> int:
        """The number of merged tokens that stand for `dropped` ones."""
        return 0

    def cut(self, scores: Tensor, states: Tensor, keep: int) -> CutResult:
        """Keep `keep` of the tokens, whose attention is `scores` (B, n) and whose hidden states are (B, n, d)."""
        return CutResult(best_first(scores, exact_ties=True)[:, :keep].sort(dim=1).values)

    def select(self, view: TokenView, query: Query | None) -> Selection:
        """Keep all tokens: nothing is dropped before the LLM."""
        every = torch.arange(view.n, device=view.features.device).expand(len(view.features), -1)
        return Selection(kept=every)

    def layer_budgets(self, n: int, layers: int) -> tuple[LayerBudget, ...]:
        """What each cut leaves of an image of `n` tokens in an LLM of `layers` layers."""
        average = Budget.of(self.keep).layer_average
        if average is not None:
            return self._reach_average(average, n, layers).layer_budgets(n, layers)
        budgets = []
        for layer, keep in sorted(dict(self.cut_schedule(n, layers)).items()):
            if not 1 <= layer < layers:
                raise ValueError(f"{self.name} cuts before layer {layer}: the LLM has {layers}, choose from 1.")
            budget = LayerBudget(layer, min(keep, n), self.merged_count(n - keep) if keep < n else 0)
            n = budget.keep + budget.merged
            budgets.append(budget)
        return tuple(budgets)

    def _reach_average(self, average: int, n: int, layers: int) -> "InLLMMethod":
        """The same with the number of tokens whose layer average comes nearest to `average`."""

        def reached(keep: int) -> float:
            return replace(self, keep=keep).accounting(n, layers).layer_average

        if reached(1) > average:
            raise ValueError(
                f"keep={average} tokens per layer on average: {self.name} cannot go below {reached(1):.1f} "
                f"for {n} tokens in an LLM of {layers} layers."
            )
        above = min(n, 1 + bisect_left(range(1, n + 1), float(average), key=reached))
        return replace(self, keep=min((above - 1 or 1, above), key=lambda keep: abs(reached(keep) - average)))

    def accounting(self, n: int, layers: int) -> Accounting:
        """The budget for an image of `n` tokens in an LLM of `layers` layers, counted both ways."""
        return Accounting(n, layer_average(n, self.layer_budgets(n, layers), layers))

    def follow(self, first: Method) -> Method:
        """A method before the LLM, then this one inside it, which sees what the first one left."""
        if isinstance(first, (InLLMMethod, TwoStage)):
            return super().follow(first)
        return TwoStage(first.keep, first, self)


@dataclass(frozen=True)
class TwoStage(Method):
    """A method before the LLM, then one inside it, which sees what the first one left.

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
        """Choose by the first method."""
        return self.first.select(view, query)

    def accounting(self, n: int, layers: int) -> Accounting:
        """Both budgets together, counted both ways."""
        return self.then.accounting(self.first.accounting(n, layers).entering, layers)


def split_stages(method: Method) -> tuple[Method, InLLMMethod | None]:
    """The method that works before the LLM, and the one inside it, None if there is none."""
    if isinstance(method, TwoStage):
        return method.first, method.then
    if isinstance(method, InLLMMethod):
        return replace(method, keep=1.0), method
    return method, None


def scale_layers(published: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """Layers of an LLM of 32, at the same fraction of the depth of one of `layers`; the first at 1 or later.

    >>> scale_layers((2, 6, 15), 32), scale_layers((2, 6, 15), 28), scale_layers((2,), 4)
    ((2, 6, 15), (2, 5, 13), (1,))
    """
    return tuple(min(max(1, int(layer * layers / PUBLISHED_DEPTH + 0.5)), layers - 1) for layer in published)


def equal_ratio_counts(n: int, keep: int | float | Budget, cuts: int) -> tuple[int, ...]:
    """Tokens left after each of `cuts` cuts that take `n` tokens down to `keep` by equal ratios.

    >>> equal_ratio_counts(576, 0.125, 3), equal_ratio_counts(576, 64, 3)
    ((288, 144, 72), (277, 133, 64))
    """
    budget = Budget.of(keep)
    ratio = budget.ratio if budget.ratio is not None else budget.count(n) / n
    return tuple(max(1, int(n * ratio ** (i / cuts) + 0.5 + 1e-9)) for i in range(1, cuts + 1))


def layer_average(n: int, budgets: tuple[LayerBudget, ...], layers: int) -> float:
    """The mean number of tokens that a layer sees, if `n` enter.

    >>> layer_average(576, (LayerBudget(2, 64, 0),), layers=32)
    96.0
    """
    ends = [*(budget.layer for budget in budgets), layers]
    sizes = [n, *(budget.keep + budget.merged for budget in budgets)]
    begins = [0, *ends[:-1]]
    return sum(size * (end - begin) for size, begin, end in zip(sizes, begins, ends)) / layers


def check_cut_layers(name: str, value: Any, count: int | None = None) -> None:
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

"""SparseVLM: the words that speak of the image decide what stays of it."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from vlprune.budget import Budget
from vlprune.methods.in_llm import (
    CutResult,
    InLLMMethod,
    check_cut_layers,
    equal_ratio_counts,
    scale_layers,
)
from vlprune.methods.registry import register_method
from vlprune.selection.merge import density_peaks, means
from vlprune.selection.numerics import take
from vlprune.selection.top_k import best_first


def _of_576(first: int, second: int, last: int) -> dict[str, Any]:
    """Published counts, as ratios: so they hold for images of other sizes."""
    return {"keep": last / 576, "before": (first / 576, second / 576)}


@register_method
@dataclass(frozen=True)
class SparseVLM(InLLMMethod):
    """In three stages, the tokens that the text's most visual words attend to; some of the others come back, merged.

    Zhang et al., *SparseVLM: Visual Token Sparsification for Efficient Vision-Language Model Inference*, ICML 2025.
    After 2, 6 and 15 of 32 layers (`layers=None` is the same depth of other models) the tokens of each image stay that
    the raters attend to most, averaged over heads and raters: the text tokens after the image whose input embeddings
    are closest to it. `keep` stay at last, `before` after the first two stages (numbers or ratios; None falls by equal
    ratios, the presets have the published counts). Of the dropped, the share `recycle` with the most attention
    is merged into a few clusters, whose means stand behind the kept tokens; these come on top of the counts.
    Positions are numbered anew. It is version 1 of the method; `SparseVLMPlus` is version 2.

    >>> [tuple(budget) for budget in SparseVLM(**SparseVLM.presets["192"]).layer_budgets(576, layers=32)]
    [(2, 300, 9), (6, 200, 4), (15, 110, 3)]
    >>> SparseVLM(**SparseVLM.presets["192"]).accounting(576, layers=32).layer_average
    192.03125
    """

    before: tuple[int | float, int | float] | None = None
    recycle: float = 0.3
    layers: tuple[int, ...] | None = None

    name: ClassVar[str] = "sparsevlm"
    positions: ClassVar[str] = "renumbered"
    uses_raters: ClassVar[bool] = True
    reorders: ClassVar[bool] = True
    merges: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "192": _of_576(300, 200, 110),
        "128": _of_576(303, 110, 36),
        "96": _of_576(238, 48, 26),
        "64": _of_576(66, 30, 17),
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cut_layers("layers", self.layers, 3)
        if self.before is not None:
            if not isinstance(self.before, tuple) or len(self.before) != 2:
                raise ValueError(f"before={self.before!r}: pass what the first two stages keep, such as (0.5, 0.3).")
            for keep in self.before:
                Budget.of(keep)
        if not 0 <= self.recycle <= 1:
            raise ValueError(f"recycle={self.recycle!r}: a share must lie in [0, 1].")

    def cut_schedule(self, n: int, layers: int) -> tuple[tuple[int, int], ...]:
        """Three cuts: after 2, 6 and 15 of 32 layers, or before `layers`."""
        at = self.layers if self.layers is not None else scale_layers((2, 6, 15), layers)
        if self.before is None:
            return tuple(zip(at, equal_ratio_counts(n, self.keep, 3)))
        last = self.count(n)
        first, second = (min(n, keep) if isinstance(keep, int) else Budget.of(keep).count(n) for keep in self.before)
        return tuple(zip(at, (max(first, second, last), max(second, last), last)))

    def text_weights(self, visual: Tensor, text: Tensor, real: Tensor) -> Tensor:
        """The raters count alike, other words not at all."""
        return rater_weights(visual, text, real)

    def _recycled_count(self, dropped: int) -> int:
        return int(self.recycle * dropped + 1e-6)

    def merged_count(self, dropped: int) -> int:
        """A tenth of what is recycled, and one."""
        count = self._recycled_count(dropped)
        return count // 10 + 1 if count else 0

    def cut(self, scores: Tensor, states: Tensor, keep: int) -> CutResult:
        """Keep the best, and merge the best of the others."""
        order = best_first(scores, exact_ties=True)
        kept = order[:, :keep].sort(dim=1).values
        dropped = scores.shape[1] - keep
        count = self.merged_count(dropped)
        if not count:
            return CutResult(kept)
        again = order[:, keep : keep + self._recycled_count(dropped)].sort(dim=1).values
        members = take(states, again)
        centres, cluster = density_peaks(members, count)
        merged = means(members, cluster, count).to(states.dtype)
        return CutResult(kept, again.gather(1, centres), merged)


def rater_weights(visual: Tensor, text: Tensor, real: Tensor) -> Tensor:
    """Weights (B, T) of the text tokens as raters: equal on those closest to the visual tokens, summing to 1.

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


@register_method
@dataclass(frozen=True)
class SparseVLMPlus(SparseVLM):
    """Version 2 of SparseVLM ("SparseVLM+"): nothing is recycled, tokens keep their positions, other counts.

    >>> SparseVLMPlus(**SparseVLMPlus.presets["192"]).accounting(576, layers=32).layer_average
    192.4375
    """

    recycle: float = 0.0

    name: ClassVar[str] = "sparsevlm_plus"
    positions: ClassVar[str] = "original"
    reorders: ClassVar[bool] = False
    merges: ClassVar[bool] = False
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "192": _of_576(300, 200, 118),
        "128": _of_576(238, 108, 60),
        "96": _of_576(246, 54, 28),
        "64": _of_576(66, 34, 20),
    }

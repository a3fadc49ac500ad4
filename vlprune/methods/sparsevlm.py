"""SparseVLM: the words that speak of the image decide what stays of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from vlprune.budget import Budget
from vlprune.methods.in_llm import Cut, InLLMMethod, check_layers, falling, highest, scaled
from vlprune.selection.clusters import cluster_means, density_peaks
from vlprune.selection.raters import rater_weights

if TYPE_CHECKING:
    from torch import Tensor


def _of_576(first: int, second: int, last: int) -> dict[str, Any]:
    """Published counts, as ratios: so they hold for images of other sizes."""
    return {"keep": last / 576, "before": (first / 576, second / 576)}


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

    >>> SparseVLM(**SparseVLM.presets["192"]).steps(576, layers=32)
    (Step(layer=2, keep=300, merged=9), Step(layer=6, keep=200, merged=4), Step(layer=15, keep=110, merged=3))
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
        check_layers("layers", self.layers, 3)
        if self.before is not None:
            if not isinstance(self.before, tuple) or len(self.before) != 2:
                raise ValueError(f"before={self.before!r}: pass what the first two stages keep, such as (0.5, 0.3).")
            for keep in self.before:
                Budget.of(keep)
        if not 0 <= self.recycle <= 1:
            raise ValueError(f"recycle={self.recycle!r}: a share must lie in [0, 1].")

    def stages(self, n: int, layers: int) -> tuple[tuple[int, int], ...]:
        """Three cuts."""
        at = self.layers if self.layers is not None else scaled((2, 6, 15), layers)
        if self.before is None:
            return tuple(zip(at, falling(n, self.keep, 3)))
        last = self.count(n)
        first, second = (min(n, keep) if isinstance(keep, int) else Budget.of(keep).count(n) for keep in self.before)
        return tuple(zip(at, (max(first, second, last), max(second, last), last)))

    def weigh(self, visual: Tensor, text: Tensor, real: Tensor) -> Tensor:
        """The raters count alike, other words not at all."""
        return rater_weights(visual, text, real)

    def _recycled(self, dropped: int) -> int:
        return int(self.recycle * dropped + 1e-6)

    def merged(self, dropped: int) -> int:
        """A tenth of what is recycled, and one."""
        count = self._recycled(dropped)
        return count // 10 + 1 if count else 0

    def cut(self, scores: Tensor, states: Tensor, keep: int) -> Cut:
        """Keep the best, and merge the best of the others."""
        kept = highest(scores, keep)
        dropped = scores.shape[1] - keep
        count = self.merged(dropped)
        if not count:
            return Cut(kept)
        again = highest(scores.scatter(1, kept, -1.0), self._recycled(dropped))
        members = states.gather(1, again[..., None].expand(-1, -1, states.shape[-1]))
        centres, cluster = density_peaks(members, count)
        means = cluster_means(members, cluster, count).to(states.dtype)
        return Cut(kept, again.gather(1, centres), means)


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

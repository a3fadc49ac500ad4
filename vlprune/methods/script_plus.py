"""ScriptPlus: what we found to answer better than the paper's own settings."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from vlprune.budget import Budget
from vlprune.methods.registry import register_method
from vlprune.methods.script import Script
from vlprune.selection import evidence_trust, relevance_evidence, trusted_relevance
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class ScriptPlus(Script):
    """Script as we would use it: no graph, relevance that weighs a little more, and budgets that follow the image.

    It is no published method: docs/script-plus.md says what was tried. The fields are `Script`'s, with these changes.
    `fusion` is "released": the greedy alone. Relevance is raised to `power` before it weighs tokens: from 1, as in the
    paper, towards the most relevant tokens only. `trust` says how far it counts: 1, 0 (as without a question), or
    between; "image" takes it from each image's own map (`vlprune.selection.relevance_evidence`). With
    `Budget(adaptive=..., mean=...)` an image that is soon told keeps fewer tokens than a crowded one. `tau` may be
    "otsu" or "quantile": each image's own threshold.

    >>> ScriptPlus(keep=64).fusion, ScriptPlus(keep=64).power
    ('released', 1.25)
    >>> ScriptPlus(power=-1.0)
    Traceback (most recent call last):
    ...
    ValueError: power=-1.0: an exponent of relevance, from 0 to 16.
    """

    fusion: str = "released"
    power: float = 1.25
    trust: float | str = 1.0

    name: ClassVar[str] = "script_plus"
    adapts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.power <= 16.0:
            raise ValueError(f"power={self.power}: an exponent of relevance, from 0 to 16.")
        if self.trust != "image" and (isinstance(self.trust, str) or not 0.0 <= self.trust <= 1.0):
            raise ValueError(f"trust={self.trust!r}: a share from 0 to 1, or 'image'.")
        if self.fusion == "supplement" and Budget.of(self.keep).adaptive is not None:
            raise ValueError("fusion='supplement': it chooses all at once, so an adaptive budget does not go with it.")

    def choose(self, view: TokenView, query: Query | None, m: int, *, relevance: Tensor | None = None) -> Selection:
        """As Script does, with relevance as far as it is trusted and raised to `power`; it is shown as it was."""
        if relevance is None:
            relevance = self.relevance_scores(view, query)
        trusted = relevance if query is None else self._trusted(relevance, view)
        return replace(super().choose(view, query, m, relevance=trusted**self.power), relevance=relevance)

    def _trusted(self, relevance: Tensor, view: TokenView) -> Tensor:
        """(B, n) relevance as far as `trust` lets it count."""
        if self.trust == 1.0:
            return relevance
        if not isinstance(self.trust, str):
            return trusted_relevance(relevance, self.trust)
        evidence = relevance_evidence(relevance, view.features, grid=view.grid)
        return trusted_relevance(relevance, evidence_trust(evidence))

    def select(self, view: TokenView, query: Query | None) -> Selection:
        budget, m = Budget.of(self.keep), self.count(view.n)
        by_frames = view.frames > 1 and self.fusion != "released"
        if budget.adaptive is None or by_frames:
            return self.choose(view, query, m)
        chosen = self.choose(view, query, budget.bounds(view.n)[1])
        assert chosen.gains is not None
        assert chosen.order is not None
        sizes = tuple(budget.needed(image) for image in chosen.gains.tolist())
        kept = chosen.order[:, : max(sizes, default=0)].clone()
        for row, size in zip(kept, sizes):
            row[:size] = row[:size].sort().values
            row[size:] = row[0]
        return replace(chosen, kept=kept, sizes=sizes)

"""ScriptPlus: what we found to answer better than the paper's own settings."""

from dataclasses import dataclass, replace
from typing import ClassVar

from vlprune.budget import Budget
from vlprune.methods.registry import register_method
from vlprune.methods.script import Script
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class ScriptPlus(Script):
    """Script as we would use it: no graph, the rest of the budget spread evenly, and budgets that follow the image.

    It is no published method: docs/script-plus.md says what was tried. The fields are `Script`'s, with these changes.
    `fusion` is "released": the greedy alone. Once the best token left adds less than the share `fill` of what the first
    one added, the rest of the budget covers the image evenly (0 turns that off; "supplement" does without). With
    `Budget(adaptive=..., mean=...)` an image that is soon told keeps fewer tokens than a crowded one. `tau` may be
    "otsu" or "quantile": each image's own threshold.

    >>> ScriptPlus(keep=64).fusion, ScriptPlus(keep=64).fill
    ('released', 0.02)
    >>> ScriptPlus(fill=2.0)
    Traceback (most recent call last):
    ...
    ValueError: fill=2.0: a share of what the first token adds, from 0 to 1.
    """

    fusion: str = "released"
    fill: float = 0.02

    name: ClassVar[str] = "script_plus"
    adapts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.fill <= 1.0:
            raise ValueError(f"fill={self.fill}: a share of what the first token adds, from 0 to 1.")
        if self.fusion == "supplement" and Budget.of(self.keep).adaptive is not None:
            raise ValueError("fusion='supplement': it chooses all at once, so an adaptive budget does not go with it.")

    def select(self, view: TokenView, query: Query | None) -> Selection:
        budget, m = Budget.of(self.keep), self.count(view.n)
        by_frames = view.frames > 1 and self.fusion != "released"
        if budget.adaptive is None or by_frames:
            return self.choose(view, query, m, fill=self.fill)
        chosen = self.choose(view, query, budget.bounds(view.n)[1])
        assert chosen.gains is not None
        gains = chosen.gains
        sizes = tuple(budget.needed(image) for image in gains.tolist())
        if self.fill > budget.adaptive:
            chosen = self.choose(view, query, gains.shape[1], fill=self.fill)
        assert chosen.order is not None
        kept = chosen.order[:, : max(sizes, default=0)].clone()
        for row, size in zip(kept, sizes):
            row[:size] = row[:size].sort().values
            row[size:] = row[0]
        return replace(chosen, kept=kept, gains=gains, sizes=sizes)

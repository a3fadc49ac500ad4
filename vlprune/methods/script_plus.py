"""ScriptPlus: what we found to answer better than the paper's own settings."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from vlprune.budget import Budget
from vlprune.methods.registry import register_method
from vlprune.methods.script import Script
from vlprune.selection import (
    evidence_trust,
    graph_weights,
    relevance_evidence,
    relevance_focus,
    trusted_relevance,
)
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class ScriptPlus(Script):
    """Script as we would use it: the graph weighs instead of striking out, where the question asks about little.

    It is no published method: docs/script-plus.md says what was tried. The fields are `Script`'s, with these changes.
    `fusion` is "released": the greedy decides alone, by what each token weighs. Where the question asks about something
    small (`vlprune.selection.relevance_focus`), relevance weighs to the `power`, from 1, as in the paper, towards the
    most relevant tokens only; and what the graph finds redundant weighs less, as far as `graph_weight` says: from 0,
    where the graph has no say, to 1 (`vlprune.selection.graph_weights`). Elsewhere relevance weighs as it is, which is
    CDPruner; so it does for every question where it is by the LLM's embeddings, which do not tell what is small.
    `trust` says how far all of it counts: 1, 0 (as without a question), or between; "image" takes it from each image's
    own map of relevance (`vlprune.selection.relevance_evidence`). Without a question every token weighs the same.
    With `Budget(adaptive=..., mean=...)` an image that is soon told keeps fewer tokens than a crowded one. `tau` may be
    "otsu" or "quantile": each image's own threshold.

    >>> ScriptPlus(keep=64).fusion, ScriptPlus(keep=64).power, ScriptPlus(keep=64).graph_weight
    ('released', 2.0, 1.0)
    >>> ScriptPlus(power=-1.0)
    Traceback (most recent call last):
    ...
    ValueError: power=-1.0: an exponent of relevance, from 0 to 16.
    """

    fusion: str = "released"
    power: float = 2.0
    graph_weight: float = 1.0
    trust: float | str = 1.0

    name: ClassVar[str] = "script_plus"
    adapts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0.0 <= self.power <= 16.0:
            raise ValueError(f"power={self.power}: an exponent of relevance, from 0 to 16.")
        if not 0.0 <= self.graph_weight <= 1.0:
            raise ValueError(f"graph_weight={self.graph_weight}: a share from 0 to 1.")
        if self.trust != "image" and (isinstance(self.trust, str) or not 0.0 <= self.trust <= 1.0):
            raise ValueError(f"trust={self.trust!r}: a share from 0 to 1, or 'image'.")
        if self.fusion == "supplement" and Budget.of(self.keep).adaptive is not None:
            raise ValueError("fusion='supplement': it chooses all at once, so an adaptive budget does not go with it.")

    @property
    def recordable(self) -> bool:
        """As Script's; trust by a rule is read on the host, too."""
        return type(self) is ScriptPlus and not isinstance(self.tau, str) and not isinstance(self.trust, str)

    def choose_unrecorded(
        self, view: TokenView, query: Query | None, m: int, *, relevance: Tensor | None = None
    ) -> Selection:
        """As Script does, by what each token weighs (`weights`); relevance is shown as it was."""
        if relevance is None:
            relevance = self.relevance_scores(view, query)
        if query is None:
            return super().choose_unrecorded(view, query, m, relevance=relevance)
        weights = self.weights(view, relevance, query.source)
        return replace(
            super().choose_unrecorded(view, query, m, relevance=weights), relevance=relevance, scores=weights
        )

    def weights(self, view: TokenView, relevance: Tensor, source: str) -> Tensor:
        """(B, n) what each token weighs in the greedy, from 0 to 1: by its relevance (B, n), and by the graph.

        `source` is the query's.
        """
        trust: float | Tensor
        if isinstance(self.trust, str):
            trust = evidence_trust(relevance_evidence(relevance, view.features, grid=view.grid))
        else:
            trust = self.trust
        asked, focus = trusted_relevance(relevance, trust), self.focus(relevance, source)
        if focus is None:
            return asked
        asked = asked ** (1.0 + (self.power - 1.0) * focus[:, None])
        if self.graph_weight == 0.0:
            return asked
        share = self.graph_weight * trust * focus
        return asked * trusted_relevance(self.graph_weights(view), share)  # 1 where the graph has no say

    def focus(self, relevance: Tensor, source: str) -> Tensor | None:
        """(B,) how far power and graph count, by each image's relevance (B, n); None if not at all.

        Maps of the LLM's embeddings are broad whatever is asked: they do not tell whether that is something small.
        """
        return None if source == "llm" else relevance_focus(relevance)

    def graph_weights(self, view: TokenView) -> Tensor:
        """(B, n) what redundancy leaves of each token's weight."""
        return graph_weights(view.features, grid=view.grid, tau=self.tau, gamma=self.gamma, graph=self.graph)

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

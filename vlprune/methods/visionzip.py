"""VisionZip: what the vision tower looks at, and a summary of the rest."""

import sys
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from vlprune.budget import Budget
from vlprune.methods.base import Method
from vlprune.methods.registry import register_method
from vlprune.selection import assign, group_means, highest, remaining
from vlprune.selection.numerics import take
from vlprune.types import Query, Selection, TokenView


@register_method
@dataclass(frozen=True)
class VisionZip(Method):
    """The tokens that receive the most attention in the vision tower, and after them a few merged from all others.

    Yang et al., *VisionZip: Longer is Better but Not Necessary in Vision Language Models*, CVPR 2025,
    arXiv:2412.04467. The tower's CLS token is one of the dominant tokens, where there is one, and stands first.
    `contextual` of the m tokens are merged ones: every so many of the rest is a target, the others go to the target
    with the most similar key, and the token is target + mean of what went to it. None is the paper's share of 5 in 32.

    >>> VisionZip(**VisionZip.presets["64"])
    VisionZip(keep=64, contextual=10)
    >>> VisionZip(keep=64, contextual=64)
    Traceback (most recent call last):
    ...
    ValueError: contextual=64: must be less than the 64 tokens to keep, and not below 0.
    """

    contextual: int | None = None

    name: ClassVar[str] = "visionzip"
    needs_attention: ClassVar[bool] = True
    reorders: ClassVar[bool] = True
    merges: ClassVar[bool] = True
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "192": {"keep": 192, "contextual": 30},
        "128": {"keep": 128, "contextual": 20},
        "64": {"keep": 64, "contextual": 10},
        "32": {"keep": 32, "contextual": 5},
        "16": {"keep": 16, "contextual": 2},
        "next-640": {"keep": Budget(per_tile=128), "contextual": 20},
        "next-320": {"keep": Budget(per_tile=64), "contextual": 10},
        "next-160": {"keep": Budget(per_tile=32), "contextual": 5},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.contextual is not None and (isinstance(self.contextual, bool) or not isinstance(self.contextual, int)):
            raise ValueError(f"contextual={self.contextual!r}: pass a number of tokens (int) or None.")
        most = self.keep if isinstance(self.keep, int) else sys.maxsize
        if self.contextual is not None and not 0 <= self.contextual < most:
            raise ValueError(
                f"contextual={self.contextual}: must be less than the {most} tokens to keep, and not below 0."
            )

    def _contextual_count(self, m: int) -> int:
        """The number of contextual tokens among m."""
        return m - int(m * 27 / 32 + 0.5) if self.contextual is None else min(self.contextual, m - 1)

    def select(self, view: TokenView, query: Query | None) -> Selection:
        n = view.n
        m = self.count(n)
        contextual = self._contextual_count(m)
        attention, features = self.require(view, "attention"), view.features
        if m == n:
            everything = torch.arange(n, device=features.device).repeat(features.shape[0], 1)
            return Selection(kept=everything, order=highest(attention, n), scores=attention)
        order = highest(attention, m - contextual - (view.cls is not None))
        dominant = order.sort(dim=1).values
        kept, embeddings = [dominant], [take(features, dominant)]
        if contextual:
            tower = self.require(view, "tower")
            rest = remaining(dominant, n)
            step = rest.shape[1] // contextual
            targets = rest[:, : step * contextual : step]
            groups = assign(self.require(view, "keys"), targets).scatter(1, dominant, -1).scatter(1, targets, -1)
            merged = take(tower.float(), targets) + group_means(tower, groups, contextual)
            kept.append(targets)
            embeddings.append(self.require(view, "project")(merged.to(tower.dtype)))
        if view.cls is not None:
            kept.insert(0, remaining(torch.cat(kept, 1), n)[:, :1])  # CLS has no place of its own in the prompt
            embeddings.insert(0, self.require(view, "project")(view.cls[:, None]))
        return Selection(
            kept=torch.cat(kept, 1),
            order=order,
            embeddings=torch.cat([part.to(features.dtype) for part in embeddings], 1),
            scores=attention,
        )

"""PyramidDrop: fewer and fewer tokens, in stages."""

from dataclasses import dataclass
from typing import ClassVar

from vlprune.budget import Budget
from vlprune.methods.in_llm import InLLMMethod, check_cut_layers, equal_ratio_counts, scale_layers
from vlprune.methods.registry import register_method


@register_method
@dataclass(frozen=True)
class PyramidDrop(InLLMMethod):
    """Fewer tokens after each quarter of the LLM: those that its next layer would attend to.

    Xing et al., *PyramidDrop: Accelerating Your Large Vision-Language Models via Pyramid Visual Redundancy
    Reduction*, CVPR 2025.
    After a quarter, a half and three quarters of the layers the tokens of each image become fewer by the same ratio,
    until `keep` are left. The paper's 50, 25 and 12.5 % of the tokens are `keep=0.125`, the default. At each stage
    those stay that the prompt's last token would attend to most in the layer that follows, averaged over the heads;
    positions are numbered anew. `layers` are other layers to cut before, however many.

    >>> PyramidDrop().cut_schedule(576, layers=32)
    ((8, 288), (16, 144), (24, 72))
    >>> PyramidDrop().accounting(576, layers=32)
    Accounting(entering=576, layer_average=270.0)
    """

    keep: int | float | Budget = 0.125
    layers: tuple[int, ...] | None = None

    name: ClassVar[str] = "pyramiddrop"
    positions: ClassVar[str] = "renumbered"
    score_from_next_layer: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cut_layers("layers", self.layers)

    def cut_schedule(self, n: int, layers: int) -> tuple[tuple[int, int], ...]:
        """Three cuts, or as many as `layers` names."""
        at = self.layers if self.layers is not None else scale_layers((8, 16, 24), layers)
        return tuple(zip(at, equal_ratio_counts(n, self.keep, len(at))))

"""FastV: after two layers, keep what the last token looks at."""

from dataclasses import dataclass
from typing import Any, ClassVar

from vlprune.methods.in_llm import InLLMMethod, check_cut_layers, scale_layers
from vlprune.methods.registry import register_method


@register_method
@dataclass(frozen=True)
class FastV(InLLMMethod):
    """After two layers of the LLM, the tokens that the prompt's last token attends to.

    Chen et al., *An Image is Worth 1/2 Tokens After Layer 2: Plug-and-Play Inference Acceleration for Large
    Vision-Language Models*, ECCV 2024.
    Before decoder layer `layer`, `keep` tokens of each image stay: those with the most attention from the prompt's
    last token in the layer before, averaged over the heads. They keep their order and positions. `layer=None` is the
    paper's 2 of 32 layers, at the same depth of other models. The paper quotes the ratio R that is *dropped*:
    R = 50 % is `keep=0.5`. The presets "192", "128" and "64" have these averages over 32 layers for 576 tokens, which
    is how tables quote FastV.

    >>> FastV(keep=64).accounting(576, layers=32)
    Accounting(entering=576, layer_average=96.0)
    >>> FastV(keep=0.5).cut_schedule(576, layers=32), FastV(keep=0.5).cut_schedule(1280, layers=28)
    (((2, 288),), ((2, 640),))
    """

    layer: int | None = None

    name: ClassVar[str] = "fastv"
    presets: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"keep": 0.5},
        "192": {"keep": 166 / 576},
        "128": {"keep": 98 / 576},
        "64": {"keep": 30 / 576},
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        check_cut_layers("layer", None if self.layer is None else (self.layer,), 1)

    def cut_schedule(self, n: int, layers: int) -> tuple[tuple[int, int], ...]:
        """One cut."""
        (layer,) = (self.layer,) if self.layer is not None else scale_layers((2,), layers)
        return ((layer, self.count(n)),)

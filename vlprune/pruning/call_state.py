"""What the hooks of one attached model know of the call in progress, and of the most recent one."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from vlprune.pruning.feature_cache import FeatureCache
from vlprune.pruning.layer_plan import LayerPlan
from vlprune.pruning.shorten import ShortPrompt


@dataclass
class GenerateCall:
    """One running `generate`: its shortened prompt (None where nothing is dropped), and the caches that hold it."""

    short: ShortPrompt | None = None
    filled: list[Any] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)

    def check_thread(self) -> None:
        """Raise `RuntimeError` in another thread than the one that generates."""
        if self.thread != threading.get_ident():
            raise RuntimeError(
                "this model is generating in another thread: an attached model takes one call at a time."
            )


@dataclass
class ForwardPass:
    """What one forward of the model hands to its decoder, beside the embeddings.

    `visual` (B, S) are the tokens at which the decoder adds `deepstack`, one (B, S, d) for each of its first layers.
    `layer_plan` is what its layers drop, `labels` (B, S) the targets that go with them. `short` is the prompt of a
    direct call, which the cache that comes out of it is to note. `entered` is set when the decoder has begun.
    """

    visual: Tensor | None = None
    deepstack: list[Tensor] = field(default_factory=list)
    layer_plan: LayerPlan | None = None
    labels: Tensor | None = None
    short: ShortPrompt | None = None
    entered: bool = False


@dataclass
class CallState:
    """The one place where the wrapped `generate` and the hooks meet.

    `query` and `feature_cache` are settings of the next call. `generating` is the running `generate`, `forward` what
    the model's hook hands to the decoder's in the running forward, `latest` the prompt of the most recent call.
    """

    feature_cache: FeatureCache
    query: str | Sequence[str | None] | None = None
    generating: GenerateCall | None = None
    forward: ForwardPass | None = None
    latest: ShortPrompt | None = None

"""What the hooks of one attached model know of the call in progress, and of the most recent one."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NoReturn

import torch
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
    the model's hook hands to the decoder's in the running forward, `latest` the prompt of the most recent call: None
    where that had no images, or where the model was not `called` yet. Whoever calls the model holds the `lock`, so that
    calls of several threads follow each other. `detached` is set at the end: somebody may still hold our `generate`.
    """

    feature_cache: FeatureCache
    query: str | Sequence[str | None] | None = None
    generating: GenerateCall | None = None
    forward: ForwardPass | None = None
    latest: ShortPrompt | None = None
    called: bool = False
    detached: bool = False
    lock: Any = field(default_factory=threading.RLock)
    _held: threading.local = field(default_factory=threading.local)

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError("a model with a pruner attached cannot be copied: detach it, and attach one to each copy.")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a model with a pruner attached cannot be pickled: detach it first.")

    def start_call(self) -> None:
        """Forget the prompt of the call before."""
        self.latest, self.called = None, True

    def in_own_generate(self) -> bool:
        """Whether this thread is inside `generate`; then it holds the lock already."""
        call = self.generating
        if call is None or torch.compiler.is_compiling():  # compiled code is that of generate's steps
            return call is not None
        return call.thread == threading.get_ident()

    @contextmanager
    def own_call(self) -> Iterator[None]:
        """Inside, this thread is in a call of the pruner's own, and other threads wait."""
        with self.lock:
            self._held.calls = getattr(self._held, "calls", 0) + 1
            try:
                yield
            finally:
                self._held.calls -= 1

    def in_own_call(self) -> bool:
        """Whether what this thread does with the model goes through the pruner."""
        if self.in_own_generate():
            return True
        return bool(getattr(self._held, "calls", 0) or getattr(self._held, "forward", False))

    def lock_forward(self) -> None:
        """Wait until no other thread is in a call, and keep others out until `unlock_forward`."""
        self.unlock_forward()  # of a forward that Ctrl-C ended, for which no hook is called
        self.lock.acquire()
        self._held.forward = True

    def unlock_forward(self) -> None:
        """Let other threads in, if this one's forward has kept them out."""
        if getattr(self._held, "forward", False):
            self._held.forward = False
            self.lock.release()

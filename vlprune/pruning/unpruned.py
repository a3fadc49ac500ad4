"""Warn of calls with images that go past the pruner, so that nothing is dropped."""

import inspect
import threading
import warnings
from typing import Any

from vlprune.pruning.call_state import CallState
from vlprune.pruning.generation_settings import cache_length
from vlprune.pruning.layout import layout_of
from vlprune.pruning.shorten import PromptShortener


class UnprunedCalls:
    """Says once of each way past the pruner that a call took it.

    The model's hooks see `model(...)` alone. Its base model and its decoder are also reached by `model.forward(...)`,
    by somebody's own loop, and by engines that bypass `generate`; so they have hooks that only look.
    """

    def __init__(self, shortener: PromptShortener, state: CallState) -> None:
        self._shortener, self._state = shortener, state
        self._name = type(shortener.model).__name__
        self._told: set[str] = set()
        self._in_base = threading.local()

    def register(self, handles: list[Any]) -> None:
        """Put the hooks in place, and add their handles."""
        base = self._shortener.model.base_model
        handles.append(base.register_forward_pre_hook(self._before_base, with_kwargs=True))
        handles.append(base.register_forward_hook(self._after_base, always_call=True))

    def check_embeddings(self, caller: str, kwargs: dict[str, Any]) -> None:
        """Warn of a prompt that comes as embeddings: nobody can see which of them are images'."""
        embeds = kwargs.get("inputs_embeds")
        if embeds is None or embeds.shape[1] < 2 or self._shortener.has_images(kwargs):
            return
        cache = kwargs.get("past_key_values")
        if layout_of(cache) is None or cache_length(cache) == 0:
            self._warn(f"{self._name}{caller} was given inputs_embeds, in which images cannot be seen")

    def check_decoder(self, kwargs: dict[str, Any]) -> None:
        """Warn where the decoder is not called by its model, but with a prompt of embeddings by somebody else."""
        embeds = kwargs.get("inputs_embeds")
        if self._state.in_own_call() or getattr(self._in_base, "now", False) or embeds is None:
            return
        if embeds.shape[1] > 1:
            self._warn(f"the decoder of the {self._name} was called with inputs_embeds, past the model")

    def _before_base(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._state.in_own_call():
            return
        self._in_base.now = True
        if args:
            kwargs = {**dict(zip(inspect.signature(module.forward).parameters, args)), **kwargs}
        if self._shortener.has_images(kwargs):
            self._warn(f"{self._name}.forward, or its base model, was called with images past the pruner's hooks")

    def _after_base(self, module: Any, args: Any, output: Any) -> None:
        if not self._state.in_own_call():
            self._in_base.now = False

    def _warn(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            warnings.warn(
                f"vlprune: {what}, so no visual tokens were dropped: call model(...) or model.generate(...) with "
                "input_ids and the images.",
                stacklevel=2,
            )

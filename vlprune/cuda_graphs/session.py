"""The graphs of one batch size and one size of cache: a prefill per bucket of prompt lengths, and the decoding step."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import nullcontext
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vlprune.cuda_graphs.capture import Capture, Compiled
from vlprune.cuda_graphs.fused_attention import LONGEST
from vlprune.cuda_graphs.fused_linear import Projections
from vlprune.cuda_graphs.static_cache import FILL, STEP, SlotCache, writing


def bucket(length: int) -> int:
    """The length that a prompt is filled up to: the next multiple of 16, of 32 above 512.

    >>> bucket(1), bucket(128), bucket(431), bucket(2993)
    (16, 128, 432, 3008)
    """
    step = 16 if length <= 512 else 32
    return -(-length // step) * step


def capacity(length: int) -> int:
    """Slots for `length` tokens: the next multiple of 256, which no bucket of a shorter prompt exceeds.

    >>> capacity(127), capacity(257)
    (256, 512)
    """
    return -(-length // 256) * 256


class Step:
    """One graph and the memory it reads: embeddings (B, size, d) and positions (..., size)."""

    def __init__(self, embeds: Tensor, places: Tensor) -> None:
        self.embeds, self.places = embeds, places
        self.run: Callable[[], Tensor] = lambda: self.embeds


class Session:
    """Runs the decoder on prompts and tokens of `batch` rows, in a cache of its own."""

    def __init__(
        self,
        decoder: Any,
        plain: Callable[..., Any],
        batch: int,
        slots: int,
        device: torch.device,
        capture: Capture,
        projections: Projections,
        compiled: Compiled | None,
    ) -> None:
        self._config, self._plain, self._capture = decoder.config, plain, capture
        self._projections, self._compiled = projections, compiled
        self.cache = SlotCache(decoder.config.num_hidden_layers, slots, device)
        self._numbers = torch.arange(slots, device=device)
        self._keep = torch.ones(batch, slots, dtype=torch.bool, device=device)
        self._steps: dict[Hashable, Step] = {}
        self._known = True  # where the prompt's padding lies

    @property
    def graphs(self) -> int:
        """How many have been captured."""
        return len(self._steps)

    def open(self) -> SlotCache:
        """The cache, empty, for another `generate`."""
        self.cache.clear()
        self._known = True
        return self.cache

    def run(self, inputs: dict[str, Any]) -> Tensor | str:
        """The decoder's last hidden states (B, n, d) for its own arguments, or why this call cannot be a graph.

        A prompt is filled up to its bucket at its end: in causal attention no token sees what comes after it, so the
        fillers need no mask, and what they leave in the cache is overwritten by the tokens to come.
        """
        inputs = dict(inputs)
        embeds, places, mask = (inputs.pop(name, None) for name in ("inputs_embeds", "position_ids", "attention_mask"))
        for name in ("past_key_values", "use_cache", "input_ids"):
            inputs.pop(name, None)
        filled = self.cache.get_seq_length()
        if embeds is None:
            return "the decoder is called without inputs_embeds"
        batch, length = embeds.shape[:2]
        padded = filled == 0 and self._note(mask, batch, length)
        odd = [name for name, value in inputs.items() if not isinstance(value, (bool, int, str, type(None)))]
        if not self._known:
            return "the model makes an attention mask of its own"
        if odd:
            return f"the decoder reads this prompt with {' and '.join(odd)}"
        if filled and length > 1:
            return "several tokens come at once behind a cache"
        if places is None:
            places = torch.arange(filled, filled + length, device=embeds.device)[None]
        size = 1 if filled else bucket(length)
        step = self._step(embeds, places, size, filled == 0, padded, inputs)
        step.embeds[:, :length].copy_(embeds)
        step.places[..., :length].copy_(places)
        self.cache.at.fill_(filled)
        hidden = step.run()
        self.cache.fill(filled + length)
        return hidden[:, :length]

    def _note(self, mask: Any, batch: int, length: int) -> bool:
        """Remember the padding of a prompt, and say whether there is any."""
        self._keep.fill_(True)
        if mask is None:
            return False
        self._known = isinstance(mask, Tensor) and mask.shape == (batch, length)
        if not self._known:  # a mask of another kind, made by the model
            return False
        self._keep[:, :length].copy_(mask)
        return not bool(mask.all())

    def _step(
        self, embeds: Tensor, places: Tensor, size: int, first: bool, padded: bool, options: dict[str, Any]
    ) -> Step:
        shape = (embeds.shape[0], size, embeds.shape[2])
        key = (shape, embeds.dtype, places.shape[:-1], first, padded, tuple(sorted(options.items())))
        if key not in self._steps:
            step = Step(embeds.new_zeros(shape), places.new_zeros(*places.shape[:-1], size))
            # values of the real kind: what is captured is also run, and what is compiled may look at them
            length = embeds.shape[1]
            step.embeds.copy_(F.pad(embeds, (0, 0, 0, size - length)))
            step.places.copy_(F.pad(places, (0, size - length)))
            self.cache.at.fill_(self.cache.get_seq_length())

            def call() -> Tensor:
                return self._decode(step, first, padded, options)

            step.run = self._capture(call)
            self._steps[key] = step
        return self._steps[key]

    def _decode(self, step: Step, first: bool, padded: bool, options: dict[str, Any]) -> Tensor:
        mask = None
        if not first:
            mask = (self._numbers <= self.cache.at) & self._keep
            mask = mask[:, None, None]
        elif padded:
            at = self._numbers[: step.embeds.shape[1]]
            # a token always sees itself: a row that sees nothing would be NaN
            mask = (at <= at[:, None]) & self._keep[:, None, None, : len(at)] | (at == at[:, None])
        ready = all(layer.is_initialized for layer in self.cache.layers)
        short = ready and first and not padded and step.embeds.shape[1] <= LONGEST
        compiled = self._compiled.layers(self.cache) if self._compiled is not None and ready else nullcontext()
        joined = self._projections.joined(short, self._compiled is not None)
        with joined, compiled, writing(self.cache, FILL if first else STEP, self._config):
            output = self._plain(
                inputs_embeds=step.embeds,
                position_ids=step.places,
                attention_mask=mask,
                past_key_values=self.cache,
                use_cache=True,
                **options,
            )
        hidden: Tensor = output.last_hidden_state
        return hidden

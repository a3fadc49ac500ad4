"""CUDA graphs of a decoder for one batch size and cache size: a prefill per bucket of lengths, and a decoding step."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vlprune.cuda_graphs.capture import Capture, CompiledLayers, SideStream
from vlprune.cuda_graphs.fused_attention import MAX_PROMPT
from vlprune.cuda_graphs.fused_modules import FusedModules
from vlprune.cuda_graphs.static_cache import DECODE, PREFILL, StaticKVCache, write_mode

#: Arguments of the decoder that a graph sets itself; all others are options, which a graph is captured with.
OWN_ARGUMENTS = ("inputs_embeds", "position_ids", "attention_mask", "past_key_values", "use_cache", "input_ids")
#: Prompts are not read ahead any more after so many in a row that nobody asked for.
MAX_MISSES = 3


class NotCovered(Exception):
    """A call of the decoder cannot run as a graph; the message says why."""


def bucket(length: int) -> int:
    """The length that a prompt is filled up to: the next multiple of 16, of 32 above 512.

    >>> bucket(1), bucket(128), bucket(431), bucket(2993)
    (16, 128, 432, 3008)
    """
    step = 16 if length <= 512 else 32
    return -(-length // step) * step


def capacity(length: int) -> int:
    """Cache slots for `length` tokens: the next multiple of 256, which no bucket of a shorter prompt exceeds.

    >>> capacity(127), capacity(257)
    (256, 512)
    """
    return -(-length // 256) * 256


class DecoderGraph:
    """One graph and the memory it reads: embeddings (B, size, d) and positions (..., size)."""

    def __init__(self, embeds: Tensor, positions: Tensor) -> None:
        self.embeds, self.positions = embeds, positions
        self.replay: Callable[[], Tensor] = lambda: self.embeds
        self._length = 0
        self._from_zero: bool | None = None

    def read(self, embeds: Tensor, positions: Tensor) -> Tensor:
        """The last hidden states (B, n, d) of n tokens."""
        self._length = length = embeds.shape[1]
        self.embeds[:, :length].copy_(embeds)
        self.positions[..., :length].copy_(positions)
        return self.replay()[:, :length]

    def counts_from_zero(self) -> bool:
        """Whether the positions of the latest prompt do, when first asked; waits for the device, once."""
        if self._from_zero is None:
            positions = self.positions[..., : self._length]
            counted = torch.arange(self._length, device=positions.device)
            self._from_zero = torch.equal(positions, counted.expand_as(positions))
        return self._from_zero


class PromptCall(NamedTuple):
    """What the decoder is called with beside the embeddings of a prompt without padding: the leading sizes of its
    positions (..., L), and options."""

    leading: tuple[int, ...]
    options: dict[str, Any]


class ReadAhead(NamedTuple):
    """A prompt that was read before the decoder was called on it: the call, its embeddings (B, L, d), and the last
    hidden states."""

    call: PromptCall
    embeds: Tensor
    hidden: Tensor

    def is_asked_by(self, call: PromptCall, embeds: Tensor) -> bool:
        """Whether such a call of the decoder is for this prompt: embeddings are the same if their memory is."""
        return call == self.call and embeds.data_ptr() == self.embeds.data_ptr() and embeds.shape == self.embeds.shape


class DecoderGraphs:
    """Runs a decoder on prompts and tokens of `batch` rows as graphs, which share one cache of `slots` tokens.

    `forward` is the decoder's own. Graphs are captured at the first call that needs them.
    """

    def __init__(
        self,
        decoder: Any,
        forward: Callable[..., Any],
        batch: int,
        slots: int,
        device: torch.device,
        capture: Capture,
        fused_modules: FusedModules,
        compiled_layers: CompiledLayers | None,
    ) -> None:
        self._config, self._forward, self._capture = decoder.config, forward, capture
        self._fused_modules, self._compiled_layers = fused_modules, compiled_layers
        self.cache = StaticKVCache(decoder.config.num_hidden_layers, slots, device)
        self._slot_numbers = torch.arange(slots, device=device)
        self._is_token = torch.ones(batch, slots, dtype=torch.bool, device=device)  # False: the prompt's padding
        self._graphs: dict[Hashable, DecoderGraph] = {}
        self._padding_known = True
        self._last_call: PromptCall | None = None
        self._side_stream = SideStream(device)  # reads ahead: on the first, `generate` often waits for the device
        self._ahead: ReadAhead | None = None
        self._misses = 0  # prompts in a row that were read ahead and that nobody asked for

    @property
    def graph_count(self) -> int:
        """How many graphs have been captured."""
        return len(self._graphs)

    def reset(self) -> None:
        """Empty the cache for another call of `generate`, but for a prompt that has been read ahead of it."""
        if self._ahead is None:
            self._side_stream.join()  # an interrupted call may have left work there
            self.cache.clear()
        else:
            self.cache.set_length(0)
        self._padding_known = True

    def read_ahead(self, embeds: Tensor) -> None:
        """Read a prompt (B, L, d) without padding, as the last such was read, before the decoder is called on it.

        Nothing is done where there is no graph for it yet, where such prompts do not count from position 0, or if it
        was in vain.
        """
        last, length = self._last_call, embeds.shape[1]
        if last is None or self._misses >= MAX_MISSES:
            return
        with self._side_stream.running():
            positions = torch.arange(length, device=embeds.device).expand(*last.leading, length)
            graph = self._graphs.get(self._key(embeds, positions, bucket(length), True, False, last.options))
            if graph is None or not graph.counts_from_zero():
                return
            self._ahead = None
            self.reset()
            hidden = self.run({"inputs_embeds": embeds, "position_ids": positions, **last.options})
        self._ahead = ReadAhead(last, embeds, hidden)

    def forget_ahead(self) -> None:
        """Forget a prompt that was read ahead and that nobody has asked for."""
        if self._ahead is not None:
            self._side_stream.join()  # before anything else uses the cache, or the memory of the embeddings
            self._ahead = None
            self._misses += 1

    def run(self, inputs: dict[str, Any]) -> Tensor:
        """The decoder's last hidden states (B, n, d) for its own arguments; raises `NotCovered`.

        A prompt is filled up to its bucket at its end: in causal attention no token sees what comes after it, so the
        fillers need no mask, and what they leave in the cache is overwritten by the tokens to come.
        """
        embeds, positions, mask = (inputs.get(name) for name in ("inputs_embeds", "position_ids", "attention_mask"))
        options = {name: value for name, value in inputs.items() if name not in OWN_ARGUMENTS}
        filled = self.cache.get_seq_length()
        if embeds is None:
            raise NotCovered("the decoder is called without inputs_embeds")
        batch, length = embeds.shape[:2]
        if positions is None:
            positions = torch.arange(filled, filled + length, device=embeds.device)[None]
        call = PromptCall(tuple(positions.shape[:-1]), options)
        if filled == 0:
            ahead = self._ahead
            if ahead is not None and mask is None and ahead.is_asked_by(call, embeds):
                self._side_stream.join()
                self._ahead, self._misses = None, 0
                self.cache.set_length(length)
                return ahead.hidden
            if ahead is not None:
                self.forget_ahead()
                self.cache.clear()
            self._store_padding(mask, batch, length)
        self._check_covered(options, filled, length)
        padded = filled == 0 and mask is not None and not bool(mask.all())
        size = 1 if filled else bucket(length)
        graph = self._graph(embeds, positions, size, filled == 0, padded, options)
        self.cache.write_slot.fill_(filled)
        hidden = graph.read(embeds, positions)
        self.cache.set_length(filled + length)
        if filled == 0 and mask is None:
            self._last_call = call
        return hidden

    def _store_padding(self, mask: Any, batch: int, length: int) -> None:
        """Store which tokens of a prompt are padding, by its attention mask."""
        self._is_token.fill_(True)
        if mask is None:
            return
        self._padding_known = isinstance(mask, Tensor) and mask.shape == (batch, length)
        if self._padding_known:  # else a mask of another kind, made by the model
            self._is_token[:, :length].copy_(mask)

    def _check_covered(self, options: dict[str, Any], filled: int, length: int) -> None:
        """Raise `NotCovered` for a call that a graph cannot stand for."""
        if not self._padding_known:
            raise NotCovered("the model makes an attention mask of its own")
        tensors = [name for name, value in options.items() if not isinstance(value, (bool, int, str, type(None)))]
        if tensors:
            raise NotCovered(f"the decoder reads this prompt with {' and '.join(tensors)}")
        if filled and length > 1:
            raise NotCovered("several tokens come at once behind a cache")

    def _graph(
        self, embeds: Tensor, positions: Tensor, size: int, prefill: bool, padded: bool, options: dict[str, Any]
    ) -> DecoderGraph:
        """The graph for calls of this kind and of `size` tokens, captured on these inputs if there is none yet."""
        shape = (embeds.shape[0], size, embeds.shape[2])
        key = self._key(embeds, positions, size, prefill, padded, options)
        if key not in self._graphs:
            graph = DecoderGraph(embeds.new_zeros(shape), positions.new_zeros(*positions.shape[:-1], size))
            # values of the real kind: what is captured is also run, and what is compiled may look at them
            length = embeds.shape[1]
            graph.embeds.copy_(F.pad(embeds, (0, 0, 0, size - length)))
            graph.positions.copy_(F.pad(positions, (0, size - length)))
            self.cache.write_slot.fill_(self.cache.get_seq_length())

            def call() -> Tensor:
                return self._run_decoder(graph, prefill, padded, options)

            graph.replay = self._capture(call)
            self._graphs[key] = graph
        return self._graphs[key]

    @staticmethod
    def _key(
        embeds: Tensor, positions: Tensor, size: int, prefill: bool, padded: bool, options: dict[str, Any]
    ) -> Hashable:
        shape = (embeds.shape[0], size, embeds.shape[2])
        return shape, embeds.dtype, positions.shape[:-1], prefill, padded, tuple(sorted(options.items()))

    def _run_decoder(self, graph: DecoderGraph, prefill: bool, padded: bool, options: dict[str, Any]) -> Tensor:
        """Call the decoder on a graph's memory: this is what is captured."""
        size = graph.embeds.shape[1]
        cache_exists = all(layer.is_initialized for layer in self.cache.layers)
        short_prompt = cache_exists and prefill and not padded and size <= MAX_PROMPT
        mask = self._attention_mask(size, prefill, padded)
        fused = self._fused_modules.installed(short_prompt, self._compiled_layers is not None)
        compiled = (
            self._compiled_layers.installed(self.cache)
            if self._compiled_layers is not None and cache_exists
            else nullcontext()
        )
        with fused, compiled, write_mode(self.cache, PREFILL if prefill else DECODE, self._config):
            output = self._forward(
                inputs_embeds=graph.embeds,
                position_ids=graph.positions,
                attention_mask=mask,
                past_key_values=self.cache,
                use_cache=True,
                **options,
            )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def _attention_mask(self, size: int, prefill: bool, padded: bool) -> Tensor | None:
        """Which slots each token sees, (B, 1, size or 1, slots); None for a prompt without padding, which is causal."""
        if not prefill:
            visible = (self._slot_numbers <= self.cache.write_slot) & self._is_token
            return visible[:, None, None]
        if not padded:
            return None
        at = self._slot_numbers[:size]
        # a token always sees itself: a row that sees nothing would be NaN
        return (at <= at[:, None]) & self._is_token[:, None, None, :size] | (at == at[:, None])

"""CUDA graphs for `generate`: it is handed our cache, and a decoder that is called with that cache replays a graph."""

from __future__ import annotations

import functools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from vlprune.cuda_graphs.capture import Capture, Capturing, CompiledLayers, ModuleInspector, ModuleState
from vlprune.cuda_graphs.decoder_graphs import DecoderGraphs, NotCovered, capacity
from vlprune.cuda_graphs.fused_modules import FusedModules
from vlprune.cuda_graphs.graphed_towers import GraphedTowers
from vlprune.pruning.generate import has_pruner
from vlprune.pruning.generation_check import quick_generation_check
from vlprune.pruning.patched_attributes import Patches

#: Pairs of batch size and cache size whose graphs and caches are kept.
MAX_SIZES = 4


class GraphedModel:
    """Makes `model.generate` run its LLM as CUDA graphs, until `close()` or the end of the `with`.

    Greedy and sampled answers, of any batch, padded or not. The first call of a new shape captures its graphs; prompts
    whose lengths fall into one bucket share one. What is not covered runs as before, with one warning that says
    why. With `compile=True` the layers of the decoder and of the vision tower are compiled before.

    Example:
        with GraphedModel(model):
            out = model.generate(**inputs, max_new_tokens=20)
    """

    def __init__(self, model: Any, *, compile: bool = False, capture: Capture | None = None) -> None:
        for name in ("_prepare_cache_for_generation", "get_decoder"):
            if not hasattr(model, name):
                raise TypeError(f"model is a {type(model).__name__}: graphs need a transformers model that generates.")
        self._model, self._decoder = model, model.get_decoder()
        if hasattr(self._decoder.__dict__.get("forward"), "graphed") or has_pruner(model):
            raise RuntimeError(
                "model already has graphs or a pruner: close that first, or attach(..., cuda_graphs=True)."
            )
        self._warned: set[str] = set()
        self._capturing = Capturing(model, capture, self._warn)
        self._compiled_layers = CompiledLayers(self._decoder) if compile else None
        self._fused_modules: FusedModules | None = None
        self._decoder_graphs: OrderedDict[Hashable, DecoderGraphs] = OrderedDict()  # by batch size and cache size
        self._active: DecoderGraphs | None = None  # those of the `generate` that runs now
        self._inspect_decoder = ModuleInspector(self._decoder)
        self._inspected: ModuleState | None = None  # the decoder, in that call
        self._captured_weights: Hashable = None
        self._held_weights: list[Tensor] = []  # what graphs read stays there until they are made anew
        #: Whether short prompts are read while `generate` gets ready; False to time the parts of a call by themselves.
        self.reads_ahead = True
        self._patches = Patches()
        self._original_forward: Callable[..., Any] = self._decoder.forward
        own_memory = Capturing(model, capture, self._warn)  # another model that shares a tower may run it meanwhile
        self._towers = GraphedTowers(model, own_memory, fused=True, compiler="inductor" if compile else None)
        try:
            self._put_in_place()
        except BaseException:  # Ctrl-C, too
            self.close()
            raise

    def _put_in_place(self) -> None:
        """Put our functions in front of the model's own."""
        model = self._model
        self._patches.add(self._decoder, "forward", self._wrap_forward(self._original_forward))
        prepare = functools.partial(self._prepare_cache, model._prepare_cache_for_generation)
        self._patches.add(model, "_prepare_cache_for_generation", prepare)
        self._patches.add(model, "generate", self._wrap_generate(model.generate))

    def __enter__(self) -> GraphedModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Restore the model, and free the graphs and their memory."""
        self._patches.undo()
        self._decoder_graphs.clear()
        self._held_weights.clear()
        self._towers.close()

    @property
    def graph_count(self) -> int:
        """How many graphs of the decoder are held."""
        return sum(graphs.graph_count for graphs in self._decoder_graphs.values())

    def read_ahead(self, embeds: Tensor, longest: int) -> None:
        """Start to read a prompt (B, L, d) that `generate` will be called with, up to `longest` tokens with the answer.

        The device reads it while `generate` gets ready on the host. The prompt has to be without padding, at positions
        0 to L - 1. Nothing is done where its graph has not been captured yet.
        """
        graphs = self._decoder_graphs.get((len(embeds), capacity(longest - 1)))
        if graphs is None or not self.reads_ahead or self._capturing.failure is not None:
            return
        with torch.inference_mode(False), torch.no_grad():
            graphs.read_ahead(embeds)
        self._inspected = self._inspect_decoder()  # while the device reads: if it read in vain, nobody asks for it
        if self._inspected.hooked or self._inspected.weight_addresses != self._captured_weights:
            graphs.forget_ahead()

    # --- what takes the place of the model's own functions ---

    def _wrap_generate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def generate(*args: Any, **kwargs: Any) -> Any:
            try:
                with quick_generation_check(self._model):
                    output = original(*args, **kwargs)
            finally:
                active, self._active, self._inspected = self._active, None, None
                for graphs in self._decoder_graphs.values():
                    graphs.forget_ahead()
            if active is not None and getattr(output, "past_key_values", None) is active.cache:
                output.past_key_values = active.cache.to_dynamic(self._decoder.config)  # the next call overwrites ours
            return output

        return generate

    def _prepare_cache(
        self,
        original: Callable[..., Any],
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> Any:
        """Hand `generate` our cache, or, where graphs do not cover the call, the one that transformers makes."""
        weights, hooked = self._inspected or self._inspect_decoder()
        reason = self._reason_against_graphs(generation_config, model_kwargs, generation_mode, hooked)
        if reason is None:
            batch = batch_size * (generation_config.num_return_sequences or 1)
            self._active = self._graphs_for(batch, capacity(max_cache_length), weights)
            self._active.reset()
            model_kwargs["past_key_values"] = self._active.cache
            return None
        self._warn(reason)
        return original(generation_config, model_kwargs, generation_mode, batch_size, max_cache_length)

    def _wrap_forward(self, original: Callable[..., Any]) -> Callable[..., Any]:
        from transformers.modeling_outputs import BaseModelOutputWithPast

        def forward(*args: Any, **kwargs: Any) -> Any:
            active = self._active
            if active is None or args or kwargs.get("past_key_values") is not active.cache or self._capturing.failure:
                return original(*args, **kwargs)
            try:
                with torch.inference_mode(False), torch.no_grad():  # what is captured outlives an inference mode
                    hidden = active.run(kwargs)
            except NotCovered as reason:
                self._warn(str(reason))
                return original(*args, **kwargs)
            except RuntimeError as error:
                self._capturing.stop(error)
                return original(*args, **kwargs)
            return BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=active.cache)

        forward.graphed = self  # type: ignore[attr-defined]
        return forward

    # --- graphs ---

    def _graphs_for(self, batch: int, slots: int, weights: Hashable) -> DecoderGraphs:
        """The decoder's graphs for these sizes; all are made anew where weights have moved since the last call."""
        if self._fused_modules is None or self._captured_weights != weights:
            self._decoder_graphs.clear()
            with torch.inference_mode(False):
                self._fused_modules = FusedModules(self._decoder)
            self._captured_weights = self._inspect_decoder().weight_addresses  # fusing has moved them
            self._held_weights = [weight.detach() for weight in self._decoder.parameters()]
        key = (batch, slots)
        if key not in self._decoder_graphs:
            while len(self._decoder_graphs) >= MAX_SIZES:
                self._decoder_graphs.popitem(last=False)
            capture = self._capturing.capture()
            assert capture is not None
            with torch.inference_mode(False):
                self._decoder_graphs[key] = DecoderGraphs(
                    self._decoder,
                    self._original_forward,
                    batch,
                    slots,
                    self._model.device,
                    capture,
                    self._fused_modules,
                    self._compiled_layers,
                )
        self._decoder_graphs.move_to_end(key)
        return self._decoder_graphs[key]

    # --- what is covered ---

    def _reason_against_graphs(self, config: Any, kwargs: dict[str, Any], mode: Any, hooked: bool) -> str | None:
        """Why this call of `generate` must run without graphs, None if it need not."""
        if self._capturing.failure is not None:
            return self._capturing.failure
        if self._capturing.capture() is None:
            return f"the model is on the device {self._model.device.type!r}"
        reasons = chain(_reasons_of_call(config, kwargs, mode), _reasons_of_model(self._model, self._decoder, hooked))
        return next(reasons, None)

    def _warn(self, reason: str) -> None:
        if reason not in self._warned:
            self._warned.add(reason)
            warnings.warn(f"vlprune: without CUDA graphs: {reason}.", stacklevel=2)


def _reasons_of_call(config: Any, kwargs: dict[str, Any], mode: Any) -> Iterator[str]:
    """What in the settings of a call of `generate` graphs do not cover."""
    mode = str(getattr(mode, "value", mode))
    if mode not in ("greedy_search", "sample"):
        yield f"the generation mode is {mode!r}"
    if getattr(config, "is_assistant", False):
        yield "the model drafts for itself"
    if kwargs.get("past_key_values") is not None:
        yield "past_key_values is passed"
    if config.use_cache is False:
        yield "use_cache is False"
    if config.cache_implementation is not None:
        yield f"cache_implementation is {config.cache_implementation!r}"
    if config.prefill_chunk_size is not None:
        yield "the prompt is read in chunks"
    if config.output_attentions or config.output_hidden_states:
        yield "hidden states or attentions are asked for"


def _reasons_of_model(model: Any, decoder: Any, hooked: bool) -> Iterator[str]:
    """What in a model, as it is now, graphs do not cover."""
    attention = decoder.config._attn_implementation
    if attention != "sdpa":
        yield f"the attention is {attention!r}, not 'sdpa'"
    sliding = set(getattr(decoder.config, "layer_types", None) or ()) - {"full_attention"}
    if sliding:
        yield f"the decoder has layers of {', '.join(sorted(sliding))}"
    rope = str(getattr(getattr(decoder, "rotary_emb", None), "rope_type", ""))
    if rope in ("dynamic", "longrope"):
        yield f"the positions' frequencies depend on the prompt (rope {rope!r})"
    if decoder.training:
        yield "the model is in training mode"
    if torch.is_autocast_enabled(model.device.type):
        yield "autocast is on"
    if len(set((getattr(model, "hf_device_map", None) or {}).values())) > 1:
        yield "the model is on many devices"
    if hooked:
        yield "something hooks into the decoder's layers, as methods that prune there do"

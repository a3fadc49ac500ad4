"""The seam into `generate`: it is handed our cache, and the decoder replays a graph whenever it is called with it."""

from __future__ import annotations

import functools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch

from vlprune.cuda_graphs.capture import Capture, Compiled, CudaGraphs, inspect
from vlprune.cuda_graphs.fused_linear import Projections
from vlprune.cuda_graphs.session import Session, capacity
from vlprune.cuda_graphs.vision_tower import tower_forward, towers

#: Sessions (batch size and cache size) whose graphs and caches are kept.
SESSIONS = 4


class GraphedModel:
    """Makes `model.generate` run its LLM as CUDA graphs, until `close()` or the end of the `with`.

    Greedy and sampled answers, of any batch, padded or not. The first call of a new shape captures its graphs; prompts
    whose lengths fall into one bucket share one. What is not covered runs as before, with one warning that says
    why. With `compile=True` the decoder's layers are compiled before they are captured.

    Example:
        with GraphedModel(model):
            out = model.generate(**inputs, max_new_tokens=20)
    """

    def __init__(self, model: Any, *, compile: bool = False, capture: Capture | None = None) -> None:
        for name in ("_prepare_cache_for_generation", "get_decoder"):
            if not hasattr(model, name):
                raise TypeError(f"model is a {type(model).__name__}: graphs need a transformers model that generates.")
        self._model, self._decoder = model, model.get_decoder()
        if hasattr(self._decoder.__dict__.get("forward"), "graphed") or hasattr(
            model.__dict__.get("generate"), "vlprune"
        ):
            raise RuntimeError(
                "model already has graphs or a pruner: close that first, or attach(..., cuda_graphs=True)."
            )
        self._capture = capture
        self._compiled = Compiled(self._decoder) if compile else None
        self._sessions: OrderedDict[Hashable, Session] = OrderedDict()
        self._live: Session | None = None
        self._said: set[str] = set()
        self._failed: str | None = None
        self._weights: Hashable = None
        self._before: list[tuple[Any, str, Any]] = []
        self._plain: Callable[..., Any] = self._decoder.forward
        self._put(self._decoder, "forward", self._forward(self._plain))
        for tower in towers(model):
            self._put(tower, "forward", tower_forward(tower, tower.forward, self._way, self._fail))
        prepare = model._prepare_cache_for_generation
        self._put(model, "_prepare_cache_for_generation", functools.partial(self._prepared, prepare))
        self._put(model, "generate", self._generate(model.generate))

    def _put(self, thing: Any, name: str, value: Any) -> None:
        self._before.append((thing, name, thing.__dict__.get(name)))
        thing.__dict__[name] = value

    def __enter__(self) -> GraphedModel:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the model back as it was, and the graphs' memory too."""
        for thing, name, before in reversed(self._before):
            if before is None:
                thing.__dict__.pop(name, None)
            else:
                thing.__dict__[name] = before
        self._before = []
        self._sessions.clear()

    @property
    def graphs(self) -> int:
        """How many graphs are held."""
        return sum(session.graphs for session in self._sessions.values())

    # --- the seam ---

    def _generate(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def generate(*args: Any, **kwargs: Any) -> Any:
            try:
                output = original(*args, **kwargs)
            finally:
                live, self._live = self._live, None
            if live is not None and getattr(output, "past_key_values", None) is live.cache:
                output.past_key_values = live.cache.dynamic(self._decoder.config)  # the next call overwrites ours
            return output

        return generate

    def _prepared(
        self,
        original: Callable[..., Any],
        generation_config: Any,
        model_kwargs: dict[str, Any],
        generation_mode: Any,
        batch_size: int,
        max_cache_length: int,
    ) -> Any:
        """In place of transformers' own: the cache for this call of `generate`."""
        found = inspect(self._decoder)
        reason = self._reason(generation_config, model_kwargs, generation_mode, found.hooked)
        if reason is None:
            batch = batch_size * (generation_config.num_return_sequences or 1)
            self._live = self._session(batch, capacity(max_cache_length), found.stamp)
            model_kwargs["past_key_values"] = self._live.open()
            return None
        self._say(reason)
        return original(generation_config, model_kwargs, generation_mode, batch_size, max_cache_length)

    def _forward(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        from transformers.modeling_outputs import BaseModelOutputWithPast

        def forward(*args: Any, **kwargs: Any) -> Any:
            live = self._live
            if live is None or args or kwargs.get("past_key_values") is not live.cache or self._failed:
                return plain(*args, **kwargs)
            try:
                with torch.inference_mode(False), torch.no_grad():  # what is captured outlives an inference mode
                    hidden = live.run(kwargs)
            except RuntimeError as error:
                self._fail(error)
                return plain(*args, **kwargs)
            if isinstance(hidden, str):
                self._say(hidden)
                return plain(*args, **kwargs)
            return BaseModelOutputWithPast(last_hidden_state=hidden, past_key_values=live.cache)

        forward.graphed = self  # type: ignore[attr-defined]
        return forward

    def _session(self, batch: int, slots: int, weights: Hashable) -> Session:
        device = self._model.device
        if self._weights != weights:
            self._sessions.clear()
            with torch.inference_mode(False):
                self._projections = Projections(self._decoder)
            self._weights = inspect(self._decoder).stamp  # they have been moved side by side
        key = (batch, slots)
        if key not in self._sessions:
            while len(self._sessions) >= SESSIONS:
                self._sessions.popitem(last=False)
            way = self._way()
            assert way is not None
            with torch.inference_mode(False):
                self._sessions[key] = Session(
                    self._decoder, self._plain, batch, slots, device, way, self._projections, self._compiled
                )
        self._sessions.move_to_end(key)
        return self._sessions[key]

    def _way(self) -> Capture | None:
        """How to capture; None where it cannot be done."""
        if self._failed is not None:
            return None
        if self._capture is None and self._model.device.type == "cuda":
            self._capture = CudaGraphs(self._model.device)
        return self._capture

    # --- what is covered ---

    def _reason(self, config: Any, kwargs: dict[str, Any], mode: Any, hooked: bool) -> str | None:
        """Why this call must run without graphs, None if it need not."""
        text, device = self._decoder.config, self._model.device
        named = str(getattr(mode, "value", mode))
        attention = text._attn_implementation
        sliding = set(getattr(text, "layer_types", None) or ()) - {"full_attention"}
        rope = str(getattr(getattr(self._decoder, "rotary_emb", None), "rope_type", ""))
        checks = (
            (self._failed is not None, self._failed or ""),
            (self._way() is None, f"the model is on the device {device.type!r}"),
            (named not in ("greedy_search", "sample"), f"the generation mode is {named!r}"),
            (bool(getattr(config, "is_assistant", False)), "the model drafts for itself"),
            (kwargs.get("past_key_values") is not None, "past_key_values is passed"),
            (config.use_cache is False, "use_cache is False"),
            (config.cache_implementation is not None, f"cache_implementation is {config.cache_implementation!r}"),
            (config.prefill_chunk_size is not None, "the prompt is read in chunks"),
            (
                bool(config.output_attentions or config.output_hidden_states),
                "hidden states or attentions are asked for",
            ),
            (attention != "sdpa", f"the attention is {attention!r}, not 'sdpa'"),
            (bool(sliding), f"the decoder has layers of {', '.join(sorted(sliding))}"),
            (rope in ("dynamic", "longrope"), f"the positions' frequencies depend on the prompt (rope {rope!r})"),
            (self._decoder.training, "the model is in training mode"),
            (torch.is_autocast_enabled(device.type), "autocast is on"),
            (
                len(set((getattr(self._model, "hf_device_map", None) or {}).values())) > 1,
                "the model is on many devices",
            ),
            (hooked, "something hooks into the decoder's layers, as methods that prune there do"),
        )
        return next((reason for applies, reason in checks if applies), None)

    def _fail(self, error: Exception) -> None:
        """From now on without graphs."""
        self._failed = f"they could not be captured ({(str(error).splitlines() or [''])[0]})"
        self._say(self._failed)

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            warnings.warn(f"vlprune: without CUDA graphs: {reason}.", stacklevel=2)

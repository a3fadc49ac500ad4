"""Hook `forward`: feed the kept embeddings inside `generate`, and shorten direct calls of the model."""

import inspect
from typing import Any

import torch
from torch import Tensor

from vlprune.pruning.call_state import CallState, ForwardPass, GenerateCall
from vlprune.pruning.generation_settings import cache_length, required_token_ids
from vlprune.pruning.layer_cuts import LayerCuts
from vlprune.pruning.layer_plan import CutGroup, add_layer_cuts
from vlprune.pruning.layout import continue_from_cache, layout_of, note_layout, shorten_companions
from vlprune.pruning.positions import short_position_ids, uses_flash_attention
from vlprune.pruning.shorten import PromptShortener
from vlprune.pruning.unpruned import UnprunedCalls


class ForwardHooks:
    """The hooks on a model and on its decoder. `layer_cuts` are those between the decoder's layers, if any."""

    def __init__(
        self, shortener: PromptShortener, layer_cuts: LayerCuts | None, state: CallState, unpruned: UnprunedCalls
    ) -> None:
        self._shortener, self._layer_cuts, self._state, self._unpruned = shortener, layer_cuts, state, unpruned
        self._model = shortener.model
        # torch.compile is not to look into what locks, and calls methods: it compiles what comes after
        self._begin, self._finish = map(torch.compiler.disable, (self._begin_direct_call, self._finish_direct_call))

    def register(self, handles: list[Any]) -> None:
        """Put the hooks in place, and add their handles as they come: whoever is interrupted can take them back."""
        handles.append(self._model.register_forward_pre_hook(self._before_forward, with_kwargs=True))
        handles.append(self._model.register_forward_hook(self._after_forward, always_call=True))
        decoder = self._model.get_decoder()
        handles.append(decoder.register_forward_pre_hook(self._before_decoder, with_kwargs=True))
        if self._layer_cuts is not None:
            self._layer_cuts.register(self._note_cuts, handles)
        self._unpruned.register(handles)

    # --- the model ---

    def _before_forward(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        state = self._state
        if not state.in_own_generate():
            return self._begin(module, args, kwargs)
        state.forward = None  # of a call that failed on its way
        call = state.generating
        assert call is not None
        if call.short is None or call.short.contents is None:
            return None
        if any(kwargs.get("past_key_values") is cache for cache in call.filled):
            return None
        changed = self._next_embeds(call, kwargs)
        return None if changed is None else (args, changed)

    def _after_forward(self, module: Any, args: Any, output: Any) -> None:
        """Also called, without output, after a forward that failed."""
        if self._state.in_own_generate():
            self._state.forward = None
        else:
            self._finish(output)

    def _begin_direct_call(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The arguments of a call of the model itself, for its short prompt; None if they need not change."""
        state = self._state
        state.lock_forward()
        state.forward = None
        if args:
            kwargs = {**dict(zip(inspect.signature(module.forward).parameters, args)), **kwargs}
        if self._shortener.has_images(kwargs):
            return (), self._shorten_forward(kwargs)
        self._unpruned.check_embeddings("", kwargs)
        cache = kwargs.get("past_key_values")
        layout = layout_of(cache)
        if layout is not None and cache_length(cache) > 0:
            renumber = self._shortener.positions == "renumbered"
            return (), {**kwargs, **continue_from_cache(kwargs, layout, cache_length(cache), renumber)}
        if cache is None:
            state.start_call()
        return None

    def _finish_direct_call(self, output: Any) -> None:
        """Note in the cache how the prompt lies in it."""
        state, passed = self._state, self._state.forward
        state.forward = None
        if passed is not None and passed.short is not None and output is not None:
            parts = output if isinstance(output, tuple) else [getattr(output, "past_key_values", None)]
            for part in parts:
                if hasattr(part, "get_seq_length"):
                    note_layout(part, passed.short.final_layout)
        state.unlock_forward()

    def _next_embeds(self, call: GenerateCall, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Inside generate: the arguments with the embeddings of the columns that this forward brings, for every beam.

        None where this forward does not bring the prompt.
        """
        assert call.short is not None
        assert call.short.contents is not None
        short, contents, rule = call.short, call.short.contents, self._shortener.positions
        ids, cache = kwargs.get("input_ids"), kwargs.get("past_key_values")
        if ids is None:  # guidance also runs the model on a prompt of its own, passed by position
            return None
        rows, length = contents.embeds.shape[:2]
        start = cache_length(cache)
        stop = start + ids.shape[1]
        window = contents.cut(start, stop, ids.shape[0] // rows)
        if cache is not None and stop >= length:
            call.filled.append(cache)
        tail = ids[:, window.embeds.shape[1] :]
        if tail.shape[1]:
            window = window.followed_by(self._model.get_input_embeddings()(tail))
        changed = {**kwargs, "input_ids": None, "inputs_embeds": window.embeds}
        self._state.forward = ForwardPass(window.visual, window.deepstack, short.layer_plan)
        even = not short.layout.fillers
        if even and rule == "renumbered" and cache is not None and start == 0 and not uses_flash_attention(self._model):
            changed["attention_mask"] = None  # all ones, and to find that out the model would wait for the device
        if rule == "original" and cache is None and kwargs.get("attention_mask") is None:
            changed["attention_mask"] = torch.ones_like(ids)  # without a mask, gaps would be read as packed sequences
        return changed

    def _shorten_forward(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """The arguments of a direct call of the model with images, for its short prompt."""
        shortener, state, cache = self._shortener, self._state, kwargs.get("past_key_values")
        ids, given = required_token_ids(kwargs), kwargs.get("attention_mask")
        if given is not None and (not isinstance(given, Tensor) or given.ndim != 2):
            raise ValueError("attention_mask must be 2-D (rows, columns) for a prompt that is to be shortened.")
        start, known = cache_length(cache), layout_of(cache)
        gone = known.before - known.after if start and known is not None else 0
        mask = ids.new_ones(len(ids), start + gone + ids.shape[1]) if given is None else given
        columns = torch.arange(mask.shape[1], device=ids.device).expand(len(ids), -1)
        short = shortener.shorten(ids, mask, kwargs, columns, state.query, state.feature_cache)
        assert short.contents is not None
        state.latest, state.called, layout = short, True, short.layout
        default = columns if short.positions is None else short.positions
        positions = short_position_ids(
            self._model, shortener.positions, layout, mask, kwargs.get("position_ids"), default
        )
        changed = shortener.without_images(kwargs)
        changed.update(shorten_companions(changed, layout, mask, ids.shape, start))
        if positions is not None:
            changed["position_ids"] = positions[..., start:]
        if given is not None or layout.fillers or (positions is not None and start == 0):
            changed["attention_mask"] = layout.mask
        window = short.contents.cut(start, layout.after, 1)
        changed["input_ids"], changed["inputs_embeds"] = None, window.embeds
        labels = changed.get("labels")
        if short.layer_plan is not None and labels is not None:
            changed["labels"] = labels = labels.clone()  # what the layers drop is no target
        state.forward = ForwardPass(window.visual, window.deepstack, short.layer_plan, labels, short)
        return changed

    # --- the decoder ---

    def _before_decoder(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give the decoder what the model's own forward would have given it for its visual tokens, had it seen them."""
        passed = self._state.forward
        if passed is not None and passed.entered:
            passed = None
        if passed is not None:
            passed.entered = True
        elif self._state.generating is None:
            self._unpruned.check_decoder(kwargs)
        if self._layer_cuts is not None:
            self._layer_cuts.start(kwargs.get("attention_mask"), passed or ForwardPass())
        if passed is None or passed.visual is None or passed.layer_plan is not None:
            return None
        deepstack = [layer[passed.visual] for layer in passed.deepstack]
        return args, {**kwargs, "visual_pos_masks": passed.visual, "deepstack_visual_embeds": deepstack}

    def _note_cuts(self, groups: list[CutGroup]) -> None:
        """Add to the records what the decoder's layers have dropped."""
        short, cuts = self._state.latest, self._layer_cuts
        assert short is not None
        assert cuts is not None
        short.records = add_layer_cuts(short.records, groups, cuts.layers_cut_before, len(cuts.layers))

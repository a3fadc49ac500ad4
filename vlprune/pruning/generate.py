"""Wrap `generate`: the prompt is shortened once, before transformers sees it, and is whole again in the answer."""

import copy
import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from vlprune.devices import input_device
from vlprune.pruning.call_state import CallState, GenerateCall
from vlprune.pruning.generation_check import quick_generation_check
from vlprune.pruning.generation_settings import (
    PromptStreamer,
    cache_length,
    generation_setting,
    longest_text,
    padding_mask,
    required_token_ids,
    shift_lengths,
)
from vlprune.pruning.layout import layout_of, note_layout, shorten_companions
from vlprune.pruning.positions import short_position_ids
from vlprune.pruning.shorten import PromptShortener, ShortPrompt
from vlprune.pruning.unpruned import UnprunedCalls

ReadAhead = Callable[[Tensor, int], None]

#: The attribute by which a wrapped `generate` is known.
MARK = "vlprune"


def has_pruner(model: Any) -> bool:
    """Whether a pruner is attached to the model."""
    return hasattr(model.__dict__.get("generate"), MARK)


def wrap_generate(
    original: Callable[..., Any],
    shortener: PromptShortener,
    state: CallState,
    unpruned: UnprunedCalls,
    read_ahead: ReadAhead | None = None,
) -> Callable[..., Any]:
    """A `generate` that drops visual tokens; `state.generating` is its call while it runs, and others wait.

    `read_ahead` is told of a short prompt, and how long it may become, before transformers gets ready for it.
    """
    names = list(inspect.signature(original).parameters)

    @functools.wraps(original)
    def generate(*args: Any, **kwargs: Any) -> Any:
        with state.own_call():
            # somebody may still hold this after detach; and a model may draft for itself, inside its own generate
            if state.detached or state.generating is not None:
                return original(*args, **kwargs)
            kwargs.update(zip(names, args))
            inputs = kwargs.pop("inputs", None)
            if inputs is not None:
                kwargs["input_ids"] = inputs
            state.start_call()
            unpruned.check_embeddings(".generate", kwargs)
            with torch.no_grad():
                short, arguments = _start_generate(shortener, state, kwargs, read_ahead)
            state.latest, state.generating = short, GenerateCall(short)
            try:
                with quick_generation_check(shortener.model):
                    output = original(**arguments)
            finally:
                state.generating = None
            return _finish_generate(short, kwargs, output)

    setattr(generate, MARK, True)
    return generate


def _read_ahead(
    read_ahead: ReadAhead, shortener: PromptShortener, short: ShortPrompt, before: int, kwargs: dict[str, Any]
) -> None:
    """Tell of a short prompt of which the decoder will get embeddings alone, each row once, at positions from 0 on.

    `kwargs` are the arguments of the call for the whole prompt, of `before` tokens.
    """
    if short.contents is None or short.contents.visual is not None or short.layer_plan is not None:
        return
    if shortener.positions != "renumbered" or short.layout.fillers:
        return
    if any(kwargs.get(name) is not None for name in ("position_ids", "past_key_values")):
        return
    model, after = shortener.model, short.layout.after
    copies = [generation_setting(model, kwargs, name) for name in ("num_beams", "num_return_sequences")]
    longest = longest_text(model, {**kwargs, **shift_lengths(model, kwargs, after - before)}, after)
    if longest is not None and all(count in (None, 1) for count in copies):
        read_ahead(short.contents.embeds, longest)


def _start_generate(
    shortener: PromptShortener, state: CallState, kwargs: dict[str, Any], read_ahead: ReadAhead | None
) -> tuple[ShortPrompt | None, dict[str, Any]]:
    """The call's short prompt, and the arguments that transformers' `generate` is to be called with.

    The prompt is None where the call has no images and goes on from no short prompt.
    """
    cache, model = kwargs.get("past_key_values"), shortener.model
    arguments = {**kwargs, "disable_compile": True} if shortener.in_llm is not None else kwargs  # hooks on layers
    if not shortener.has_images(kwargs) and (cache_length(cache) == 0 or layout_of(cache) is None):
        return None, arguments
    ids = required_token_ids(kwargs).to(input_device(model))  # transformers lets prompts stay on the CPU
    mask = kwargs.get("attention_mask")
    mask = padding_mask(model, kwargs, ids) if mask is None else mask.to(ids.device)
    positions = (mask.long().cumsum(1) - 1).clamp(min=0)
    short = shortener.shorten(ids, mask, kwargs, positions, state.query, state.feature_cache)
    if read_ahead is not None:
        _read_ahead(read_ahead, shortener, short, ids.shape[1], kwargs)
    return short, _short_arguments(shortener, short, ids, mask, positions, arguments)


def _short_arguments(
    shortener: PromptShortener,
    short: ShortPrompt,
    ids: Tensor,
    mask: Tensor,
    default_positions: Tensor,
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """The call's arguments for its short prompt in place of `ids` (B, L)."""
    model, layout, given = shortener.model, short.layout, kwargs.get("position_ids")
    positions = short_position_ids(model, shortener.positions, layout, mask, given, default_positions)
    changed = shortener.without_images(kwargs)
    changed.update(shorten_companions(changed, layout, mask, ids.shape))
    if positions is not None:
        changed["position_ids"] = positions
    changed["attention_mask"] = layout.mask
    pad = generation_setting(model, kwargs, "pad_token_id")
    filler = pad if isinstance(pad, int) else 0
    short_ids = layout.gather(layout.ids)
    for placeholder in shortener.placeholders if layout.fillers else ():
        short_ids = short_ids.masked_fill((layout.mask == 0) & (short_ids == placeholder), filler)
    changed["input_ids"] = short_ids
    changed.update(shift_lengths(model, kwargs, layout.after - ids.shape[1]))
    if kwargs.get("streamer") is not None:
        changed["streamer"] = PromptStreamer(kwargs["streamer"], ids)
    return changed


def _finish_generate(short: ShortPrompt | None, kwargs: dict[str, Any], output: Any) -> Any:
    """The output with the whole prompt in front of the new tokens; its cache notes how the prompt lies in it."""
    prompt = kwargs.get("input_ids")
    if short is None or prompt is None:
        return output
    for cache in (kwargs.get("past_key_values"), getattr(output, "past_key_values", None)):
        if cache is not None:
            note_layout(cache, short.final_layout)
    sequences = output if isinstance(output, Tensor) else output.sequences
    new = sequences[:, short.layout.after :].to(prompt.device)
    whole = torch.cat([prompt.repeat_interleave(new.shape[0] // prompt.shape[0], dim=0), new], dim=1)
    if isinstance(output, Tensor):
        return whole
    output = copy.copy(output)
    output.sequences = whole
    return output

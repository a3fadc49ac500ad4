"""Ask a model for its merged embeddings without running its LLM.

The model's own base forward runs up to the door of the decoder, where a hook takes the decoder's arguments
and leaves. So whatever a family does to merge images into the prompt is done by the family's own code.
"""

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vlprune.devices import copy_to_device
from vlprune.errors import UnsupportedModel
from vlprune.models.base import Family, Stream, Vision
from vlprune.pruning.feature_cache import Encoded, FeatureCache, encode
from vlprune.pruning.patched_attributes import patched_attributes
from vlprune.pruning.prompt_images import runs

#: What decoders are called with that the seam knows how to shorten, or that does not depend on the prompt's length.
KNOWN = ("inputs_embeds", "attention_mask", "position_ids", "visual_pos_masks", "deepstack_visual_embeds")


class _Reached(BaseException):
    """Carries the way out of the model; not an `Exception`, so that no handler inside the model stops it."""


@dataclass
class Probe:
    """`embeds` (B, L, d): the prompt with the visual tokens merged in; `positions` as the decoder was to get them.

    `found`: what was encoded, by kind. `deep` (layers, B, L, d) is what the decoder adds to the hidden states of its
    first layers at visual tokens, None for models that do no such thing.
    """

    embeds: Tensor
    positions: Tensor | None
    found: dict[str, list[Vision]]
    deep: list[Tensor] | None


def probe(
    model: Any,
    family: Family,
    ids: Tensor,
    inputs: dict[str, Any],
    cache: FeatureCache | None = None,
    known: dict[str, Encoded] | None = None,
    attention: bool = False,
    host: Tensor | None = None,
) -> Probe:
    """Merge the images of `inputs` into `ids` (B, L); with `known`, from these and not from the tower.

    `host` are the ids on the CPU, from a caller that has them there.
    """
    host = ids.cpu() if host is None else host
    reached: dict[str, Any] = {}

    def at_decoder(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        reached.update(kwargs)
        raise _Reached

    counting = patched_attributes(model.base_model, _counting(model.base_model, ids, host))
    with _recorded(model, family, host, inputs, cache, known, attention) as found, counting:
        handle = model.get_decoder().register_forward_pre_hook(at_decoder, with_kwargs=True)
        try:
            with suppress(_Reached):
                model.base_model(input_ids=ids, **inputs)
        finally:
            handle.remove()
    embeds = reached["inputs_embeds"]
    _check(model, reached, embeds)
    positions, mask = reached.get("position_ids"), reached.get("visual_pos_masks")
    deep = reached.get("deepstack_visual_embeds")
    if mask is not None and deep is not None:
        deep = [embeds.new_zeros(embeds.shape).masked_scatter(mask[..., None], part.to(embeds.dtype)) for part in deep]
    return Probe(embeds, positions, {kind: part.visions for kind, part in found.items()}, deep)


def encode_images(
    model: Any,
    family: Family,
    ids: Tensor,
    inputs: dict[str, Any],
    cache: FeatureCache | None,
    attention: bool = False,
) -> dict[str, Encoded]:
    """Only run (or recall) the vision side: what each encoder made of the inputs, by kind."""
    host = ids.cpu()
    with _recorded(model, family, host, inputs, cache, None, attention, leave=True) as found, suppress(_Reached):
        model.base_model(input_ids=ids, **inputs)
    return found


def present_streams(
    model: Any, family: Family, inputs: dict[str, Any], streams: list[Stream] | None = None
) -> list[Stream]:
    """The streams that a call brings, of those that the model takes (`streams`, from a caller that knows them)."""
    given = family.given(inputs)
    return [
        stream
        for stream in (family.streams(model) if streams is None else streams)
        if given.get(stream.kind) is not None or any(inputs.get(name) is not None for name in stream.pixels)
    ]


@contextmanager
def _recorded(
    model: Any,
    family: Family,
    host: Tensor,
    inputs: dict[str, Any],
    cache: FeatureCache | None,
    known: dict[str, Encoded] | None,
    attention: bool,
    leave: bool = False,
) -> Iterator[dict[str, Encoded]]:
    """Inside, the base model's encoders note what they compute; with `leave` the last one leaves the model."""
    base, given = model.base_model, family.given(inputs)
    streams = present_streams(model, family, inputs)
    found: dict[str, Encoded] = {}
    for stream in streams:
        if given.get(stream.kind) is not None:
            output = given[stream.kind]
            found[stream.kind] = Encoded(
                output, family.read(model, stream, output, inputs, runs(host, stream.placeholder))
            )
    waiting = [stream for stream in streams if stream.kind not in found]
    inside: list[str] = []  # an encoder may call another (Qwen3-VL's of videos calls that of images)

    def recording(stream: Stream, compute: Any) -> Any:
        def record(*args: Any, **kwargs: Any) -> Any:
            if inside:
                return compute(*args, **kwargs)
            named = {**dict(zip(_parameters(compute), args)), **kwargs}
            inside.append(stream.kind)
            try:
                if known is not None:
                    encoded = known[stream.kind]
                else:
                    places = runs(host, stream.placeholder)
                    encoded = encode(family, model, stream, compute, named, places, cache, attention)
            finally:
                inside.pop()
            found[stream.kind] = encoded
            if leave and len(found) == len(streams):
                raise _Reached
            return encoded.output

        return record

    if leave and not waiting:
        yield found
        return
    with patched_attributes(base, {one.encoder: recording(one, getattr(base, one.encoder)) for one in waiting}):
        yield found


def _counting(base: Any, ids: Tensor, host: Tensor) -> dict[str, Any]:
    """The base model's `get_placeholder_mask` as one that looks for the placeholders of `ids` in `host`.

    The model's own counts them on the device and compares that with the features, so it waits until the tower is done.
    """
    find = getattr(base, "get_placeholder_mask", None)
    if find is None or _parameters(find)[:2] != ("input_ids", "inputs_embeds"):
        return {}

    def get_placeholder_mask(input_ids: Any, inputs_embeds: Tensor, *args: Any, **kwargs: Any) -> Any:
        if input_ids is not ids:
            return find(input_ids, inputs_embeds, *args, **kwargs)
        like = torch.empty((), dtype=inputs_embeds.dtype).expand(inputs_embeds.shape)  # says the size and the CPU
        found, device = find(host, like, *args, **kwargs), inputs_embeds.device
        return (
            copy_to_device(found, device)
            if isinstance(found, Tensor)
            else tuple(copy_to_device(mask, device) for mask in found)
        )

    return {"get_placeholder_mask": get_placeholder_mask}


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters; those of a method are looked up once."""
    method = getattr(function, "__func__", None)
    return tuple(inspect.signature(function).parameters) if method is None else _parameters_of(method)[1:]


@lru_cache(maxsize=64)
def _parameters_of(method: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(method).parameters)


def _check(model: Any, reached: dict[str, Any], embeds: Tensor) -> None:
    """Refuse a decoder that gets something per token which the seam would leave at the wrong length."""
    for name, value in reached.items():
        if name not in KNOWN and isinstance(value, Tensor) and value.shape[:2] == embeds.shape[:2]:
            raise UnsupportedModel(
                f"model is a {type(model).__name__}, whose decoder takes {name!r} for every token, "
                "which vlprune cannot shorten."
            )

"""Ask a model for its merged embeddings without running its LLM.

The model's own base forward runs up to the door of the decoder, where a hook takes the decoder's arguments
and leaves. So whatever a family does to merge images into the prompt is done by the family's own code.
"""

import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from vlprune.devices import copy_to_device
from vlprune.errors import UnsupportedModel
from vlprune.models.base import EncodedImage, Family, Modality
from vlprune.pruning.feature_cache import EncoderResult, FeatureCache, encode_cached
from vlprune.pruning.patched_attributes import patched_attributes
from vlprune.pruning.prompt_images import placeholder_runs

#: What decoders are called with that the seam knows how to shorten, or that does not depend on the prompt's length.
KNOWN = ("inputs_embeds", "attention_mask", "position_ids", "visual_pos_masks", "deepstack_visual_embeds")


class _Reached(Exception):
    """The way out of the model, once it has done what was wanted of it."""


@dataclass
class MergedPrompt:
    """`embeds` (B, L, d): the prompt with the visual tokens merged in; `positions` as the decoder was to get them.

    `encoded`: the images and videos, by kind. `deepstack` (layers, B, L, d) is what the decoder adds to the hidden
    states of its first layers at visual tokens, None for models that do no such thing.
    """

    embeds: Tensor
    positions: Tensor | None
    encoded: dict[str, list[EncodedImage]]
    deepstack: list[Tensor] | None


def merge_images(
    model: Any,
    family: Family,
    ids: Tensor,
    inputs: dict[str, Any],
    cache: FeatureCache | None = None,
    known: dict[str, EncoderResult] | None = None,
    attention: bool = False,
    host: Tensor | None = None,
) -> MergedPrompt:
    """Merge the images of `inputs` into `ids` (B, L); with `known`, from these and not from the tower.

    `host` are the ids on the CPU, from a caller that has them there.
    """
    host = ids.cpu() if host is None else host
    reached: dict[str, Any] = {}

    def at_decoder(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        reached.update(kwargs)
        raise _Reached

    counting = patched_attributes(model.base_model, _count_on_host(model.base_model, ids, host))
    recorder = _EncoderRecorder(model, family, host, inputs, cache, known, attention)
    with recorder.patched_encoders(), counting:
        handle = model.get_decoder().register_forward_pre_hook(at_decoder, with_kwargs=True)
        try:
            with suppress(_Reached):
                model.base_model(input_ids=ids, **inputs)
        finally:
            handle.remove()
    embeds = reached["inputs_embeds"]
    _check_decoder_arguments(model, reached, embeds)
    positions, mask = reached.get("position_ids"), reached.get("visual_pos_masks")
    deep = reached.get("deepstack_visual_embeds")
    if mask is not None and deep is not None:
        deep = [embeds.new_zeros(embeds.shape).masked_scatter(mask[..., None], part.to(embeds.dtype)) for part in deep]
    return MergedPrompt(embeds, positions, {kind: part.images for kind, part in recorder.found.items()}, deep)


def encode_images(
    model: Any,
    family: Family,
    ids: Tensor,
    inputs: dict[str, Any],
    cache: FeatureCache | None,
    attention: bool = False,
) -> dict[str, EncoderResult]:
    """What each encoder makes of the inputs, by kind; the LLM does not run, nor an encoder whose result is cached."""
    recorder = _EncoderRecorder(model, family, ids.cpu(), inputs, cache, None, attention, leave=True)
    if not recorder.done:
        with recorder.patched_encoders(), suppress(_Reached):
            model.base_model(input_ids=ids, **inputs)
    return recorder.found


def present_modalities(
    model: Any, family: Family, inputs: dict[str, Any], modalities: list[Modality] | None = None
) -> list[Modality]:
    """The modalities that a call brings, of those that the model takes (`modalities`, where they are known)."""
    given = family.precomputed_outputs(inputs)
    return [
        modality
        for modality in (family.modalities(model) if modalities is None else modalities)
        if given.get(modality.kind) is not None or any(inputs.get(name) is not None for name in modality.pixels)
    ]


class _EncoderRecorder:
    """Notes what the base model's encoders compute in one forward, or hands them what is known already.

    `found` is what each encoder made of the inputs, by kind. With `leave`, the last encoder leaves the model.
    """

    def __init__(
        self,
        model: Any,
        family: Family,
        host: Tensor,
        inputs: dict[str, Any],
        cache: FeatureCache | None,
        known: dict[str, EncoderResult] | None,
        attention: bool,
        leave: bool = False,
    ) -> None:
        self._model, self._family, self._host, self._cache = model, family, host, cache
        self._known, self._attention, self._leave = known, attention, leave
        self._modalities = present_modalities(model, family, inputs)
        self._running = False  # an encoder may call another (Qwen3-VL's of videos calls that of images)
        self.found: dict[str, EncoderResult] = {}
        given = family.precomputed_outputs(inputs)
        for modality in self._modalities:
            if given.get(modality.kind) is not None:
                output, runs = given[modality.kind], placeholder_runs(host, modality.placeholder)
                images = family.read_encoder_output(model, modality, output, inputs, runs)
                self.found[modality.kind] = EncoderResult(output, images)

    @property
    def done(self) -> bool:
        """Whether all that the call brings is encoded."""
        return len(self.found) == len(self._modalities)

    def patched_encoders(self) -> AbstractContextManager[None]:
        """Inside, the encoders that have still to run note what they compute, by the family's shortcuts."""
        base = self._model.base_model
        waiting = [modality for modality in self._modalities if modality.kind not in self.found]
        recording = {one.encoder: self._recording(one, getattr(base, one.encoder)) for one in waiting}
        return patched_attributes(base, {**self._family.shortcuts(self._model), **recording})

    def _recording(self, modality: Modality, compute: Callable[..., Any]) -> Callable[..., Any]:
        """An encoder that notes its result."""

        def encode(*args: Any, **kwargs: Any) -> Any:
            if self._running:
                return compute(*args, **kwargs)
            named = {**dict(zip(_parameters(compute), args)), **kwargs}
            self._running = True
            try:
                self.found[modality.kind] = self._encode(modality, compute, named)
            finally:
                self._running = False
            if self._leave and self.done:
                raise _Reached
            return self.found[modality.kind].output

        return encode

    def _encode(self, modality: Modality, compute: Callable[..., Any], inputs: dict[str, Any]) -> EncoderResult:
        if self._known is not None:
            return self._known[modality.kind]
        runs = placeholder_runs(self._host, modality.placeholder)
        return encode_cached(self._family, self._model, modality, compute, inputs, runs, self._cache, self._attention)


def _count_on_host(base: Any, ids: Tensor, host: Tensor) -> dict[str, Any]:
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
        if isinstance(found, Tensor):
            return copy_to_device(found, device)
        return tuple(copy_to_device(mask, device) for mask in found)

    return {"get_placeholder_mask": get_placeholder_mask}


def _parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """The names of a function's parameters; those of a method are looked up once."""
    method = getattr(function, "__func__", None)
    return tuple(inspect.signature(function).parameters) if method is None else _parameters_of(method)[1:]


@lru_cache(maxsize=64)
def _parameters_of(method: Callable[..., Any]) -> tuple[str, ...]:
    return tuple(inspect.signature(method).parameters)


def _check_decoder_arguments(model: Any, reached: dict[str, Any], embeds: Tensor) -> None:
    """Refuse a decoder that gets something per token which the seam would leave at the wrong length."""
    for name, value in reached.items():
        if name not in KNOWN and isinstance(value, Tensor) and value.shape[:2] == embeds.shape[:2]:
            raise UnsupportedModel(
                f"model is a {type(model).__name__}, whose decoder takes {name!r} for every token, "
                "which vlprune cannot shorten."
            )

"""Encode once, ask many: the image tower's results by the content of the pixels."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vlprune.models.base import EncodedImage, Family, Modality
from vlprune.models.tower_attention import record_call

#: What a model's forward reads of an encoder's output.
READ = ("pooler_output", "deepstack_features")


class Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True)
class EncoderResult:
    """What one encoder returned, and what it encoded."""

    output: Any
    images: list[EncodedImage]

    @property
    def nbytes(self) -> int:
        own = sum(_bytes(getattr(self.output, name, None)) for name in READ)
        return own + sum(image.nbytes for image in self.images)


def _bytes(value: Any) -> int:
    if isinstance(value, Tensor):
        return value.nbytes
    return sum(map(_bytes, value)) if isinstance(value, (list, tuple)) else 0


class FeatureCache:
    """The most recently used images' features, up to `limit` bytes; a limit of 0 keeps nothing. Threads may share it.

    >>> cache = FeatureCache(limit=64)
    >>> cache.put("a", torch.zeros(2, 4)); cache.put("b", torch.ones(2, 4)); cache.put("c", torch.ones(2, 4))
    >>> cache.get("a") is None, cache.nbytes
    (True, 64)
    """

    def __init__(self, limit: float, *, fixed_pixels: bool = False) -> None:
        """`fixed_pixels` promises that nobody writes to the pixels: a batch asked about often is then hashed once."""
        self.limit = limit
        self.nbytes = 0
        self._names: dict[int, tuple[Tensor, list[Hashable]]] | None = {} if fixed_pixels else None
        self._kept: OrderedDict[Hashable, Sized] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable) -> Any:
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, value: Sized) -> None:
        with self._lock:
            if key in self._kept or value.nbytes > self.limit:
                return
            self._kept[key] = value
            self.nbytes += value.nbytes
            while self.nbytes > self.limit:
                self.nbytes -= self._kept.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self.nbytes = 0
            if self._names is not None:
                self._names.clear()

    def names(self, pixels: Tensor) -> list[Hashable]:
        """What each of the images (B, ...) is known by: its content.

        >>> cache, pixels = FeatureCache(100, fixed_pixels=True), torch.zeros(2, 3)
        >>> cache.names(pixels) is cache.names(pixels)
        True
        """
        if self._names is None:
            return [digest(image) for image in pixels.detach().cpu()]
        known = self._names.get(id(pixels))
        if known is None:  # no other tensor can have this id while this one is held
            known = self._names[id(pixels)] = pixels, [digest(image) for image in pixels.detach().cpu()]
        return known[1]


def digest(values: Tensor) -> Hashable:
    """The content of a tensor, with its shape, dtype and device.

    >>> digest(torch.zeros(2)) == digest(torch.zeros(2)), digest(torch.zeros(2)) == digest(torch.ones(2))
    (True, False)
    """
    data = values.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    return hashlib.blake2b(data, digest_size=20).digest(), tuple(values.shape), values.dtype, values.device


def weights_stamp(modules: list[nn.Module]) -> Hashable:
    """Changes when a weight of these modules is replaced or written in place, so that old features are not reused."""
    tensors = [tensor for module in modules for tensor in module.parameters()]
    return hash(tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors))


def tower_settings(modules: Sequence[nn.Module]) -> list[Hashable]:
    """How a `CheaperTower` has changed each of these modules, None where it has not."""
    return [getattr(module.__dict__.get("forward"), "settings", None) for module in modules]


def encode_cached(
    family: Family,
    model: Any,
    modality: Modality,
    compute: Callable[..., Any],
    inputs: dict[str, Any],
    runs: list[int],
    cache: FeatureCache | None,
    attention: bool = False,
) -> EncoderResult:
    """Run `compute(**inputs)` (the model's own encoder of a modality), or take what the cache has of it.

    Where a family can, images are known one by one, and those that the cache lacks are encoded together; when it has
    none of them, the call is exactly the model's own. Elsewhere a call is known as a whole. Nothing is cached while
    gradients are recorded. With `attention` it is also seen what the tower looks at.
    """

    def run(inputs: dict[str, Any]) -> tuple[Any, list[EncodedImage]]:
        with record_call(family.attention_module(model, modality, inputs) if attention else None) as call:
            output = compute(**inputs)
        return output, family.read_encoder_output(model, modality, output, inputs, runs, call)

    decoder = model.get_decoder()
    encoders = [child for child in model.base_model.children() if child is not decoder]
    changes = tower_settings(encoders)
    if attention and any(changes):
        raise ValueError(
            "the method needs the vision tower's attention, which a CheaperTower does not give: close it, or choose "
            "another method."
        )
    idle = torch.is_grad_enabled() or any(module.training for module in encoders)
    if cache is None or cache.limit <= 0 or idle:
        return EncoderResult(*run(inputs))
    settings = tuple((name, repr(value)) for name, value in sorted(inputs.items()) if not isinstance(value, Tensor))
    stamp = (modality.kind, weights_stamp(encoders), tuple(changes), settings)
    if family.encodes_independently(modality, inputs):
        return _encode_one_by_one(family, modality, run, inputs, cache, stamp)
    tensors = tuple((name, digest(value)) for name, value in sorted(inputs.items()) if isinstance(value, Tensor))
    key = (tensors, tuple(runs), stamp)
    known: EncoderResult | None = cache.get(key)
    if known is None:
        output, images = run(inputs)
        known = EncoderResult(without_hidden_states(output), images)
        cache.put(key, known)
    return known


def without_hidden_states(output: Any) -> Any:
    """The output of an encoder without the hidden states that the model's forward does not read."""
    from transformers.modeling_outputs import BaseModelOutputWithPooling

    if not hasattr(output, "pooler_output"):
        return output
    small = BaseModelOutputWithPooling()
    for name in READ:
        if hasattr(output, name):
            setattr(small, name, getattr(output, name))
    return small


def _encode_one_by_one(
    family: Family,
    modality: Modality,
    run: Callable[[dict[str, Any]], tuple[Any, list[EncodedImage]]],
    inputs: dict[str, Any],
    cache: FeatureCache,
    stamp: Hashable,
) -> EncoderResult:
    name = next(name for name in modality.pixels if inputs.get(name) is not None)
    pixels = inputs[name]
    keys = [(named, pixels.device, stamp) for named in cache.names(pixels)]
    found: list[EncodedImage | None] = [cache.get(key) for key in keys]
    missing = [i for i, image in enumerate(found) if image is None]
    if len(missing) == len(found):
        output, images = run(inputs)
    else:
        images = [image for image in found if image is not None]
        if missing:
            for i, image in zip(missing, run({**inputs, name: pixels[missing]})[1]):
                images.insert(i, image)
        output = family.make_encoder_output(images)
    for i in missing:  # a copy: a view would keep its batch alive
        copies: dict[str, Any] = {name: value.clone() for name, value in images[i].tensors.items()}
        cache.put(keys[i], replace(images[i], **copies))
    return EncoderResult(output, images)

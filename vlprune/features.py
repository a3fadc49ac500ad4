"""Encode once, ask many: the vision tower's results by the content of the pixels."""

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn

from vlprune.models.base import Family, Vision


class FeatureCache:
    """The most recently used images' features, up to `limit` bytes; a limit of 0 keeps nothing.

    >>> cache = FeatureCache(limit=64)
    >>> cache.put("a", Vision(torch.zeros(2, 4), None)); cache.put("b", Vision(torch.ones(2, 4), None))
    >>> cache.put("c", Vision(torch.ones(2, 4), None)); cache.get("a") is None, cache.nbytes
    (True, 64)
    """

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.nbytes = 0
        self._images: OrderedDict[Hashable, Vision] = OrderedDict()

    def __len__(self) -> int:
        return len(self._images)

    def get(self, key: Hashable) -> Vision | None:
        if key in self._images:
            self._images.move_to_end(key)
        return self._images.get(key)

    def put(self, key: Hashable, vision: Vision) -> None:
        if key in self._images or vision.nbytes > self.limit:
            return
        tower = vision.tower.clone() if vision.tower is not None else None  # a copy: a view would keep its batch alive
        self._images[key] = Vision(vision.features.clone(), tower)
        self.nbytes += vision.nbytes
        while self.nbytes > self.limit:
            self.nbytes -= self._images.popitem(last=False)[1].nbytes

    def clear(self) -> None:
        self._images.clear()
        self.nbytes = 0


def pixel_keys(pixels: Tensor, *more: Hashable) -> list[Hashable]:
    """One key per image of `pixels` (N, C, H, W): a digest of its bytes, with its shape, dtype, device and `more`.

    >>> a, b = pixel_keys(torch.stack([torch.zeros(3, 2, 2), torch.ones(3, 2, 2)]))
    >>> a == pixel_keys(torch.zeros(1, 3, 2, 2))[0], a == b
    (True, False)
    """
    rest = (tuple(pixels.shape[1:]), pixels.dtype, pixels.device, *more)
    images = pixels.detach().cpu().contiguous().flatten(1).view(torch.uint8).numpy()
    return [(hashlib.blake2b(image.tobytes(), digest_size=20).digest(), rest) for image in images]


def weights_stamp(modules: list[nn.Module]) -> Hashable:
    """Changes when a weight of these modules is replaced or written in place, so that old features are not reused."""
    tensors = [tensor for module in modules for tensor in module.parameters()]
    return hash(tuple((t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors))


def encode(
    family: Family,
    model: Any,
    compute: Callable[..., Any],
    inputs: dict[str, Any],
    cache: FeatureCache | None,
) -> tuple[Any, list[Vision]]:
    """Run `compute(**inputs)` (the model's own `get_image_features`), or take what the cache has of it.

    Returns what the model expects back and its parts, one per image. Images that the cache lacks are encoded
    together; when it has none of them, the call is exactly the model's own. Nothing is cached while gradients
    are recorded.
    """
    encoders = [child for child in model.base_model.children() if child is not model.get_decoder()]
    idle = torch.is_grad_enabled() or any(module.training for module in encoders)
    if cache is None or cache.limit <= 0 or idle or not family.cacheable(inputs):
        output = compute(**inputs)
        return output, family.read(model, output, inputs)
    pixels = inputs["pixel_values"]
    rest = tuple((name, repr(value)) for name, value in sorted(inputs.items()) if name != "pixel_values")
    keys = pixel_keys(pixels, weights_stamp(encoders), rest)
    found = [cache.get(key) for key in keys]
    missing = [i for i, vision in enumerate(found) if vision is None]
    if len(missing) == len(found):
        output = compute(**inputs)
        visions = family.read(model, output, inputs)
    else:
        visions = [vision for vision in found if vision is not None]
        if missing:
            rest_inputs = {**inputs, "pixel_values": pixels[missing]}
            for i, vision in zip(missing, family.read(model, compute(**rest_inputs), rest_inputs)):
                visions.insert(i, vision)
        output = family.output(visions)
    for i in missing:
        cache.put(keys[i], visions[i])
    return output, visions

"""Ask a model for its merged embeddings without running its LLM.

The model's own base forward runs up to the door of the decoder, where a hook takes the decoder's arguments
and leaves. So whatever a family does to merge images into the prompt is done by the family's own code.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vlprune.features import FeatureCache, encode
from vlprune.models.base import Family, Vision


class _Reached(BaseException):
    """Carries the way out of the model; not an `Exception`, so that no handler inside the model stops it."""


@dataclass
class Probe:
    """`embeds` (B, L, d): the prompt with the visual tokens merged in; `visions`: one per image, in prompt order."""

    embeds: Tensor
    visions: list[Vision]


def probe(
    model: Any,
    family: Family,
    ids: Tensor,
    inputs: dict[str, Any],
    cache: FeatureCache | None = None,
    visions: list[Vision] | None = None,
) -> Probe:
    """Merge the images of `inputs` into `ids` (B, L); with `visions`, from these and not from the tower."""
    seen: list[Vision] = []
    reached: dict[str, Any] = {}

    def at_decoder(module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        reached.update(kwargs)
        raise _Reached

    with _recorded(model, family, cache, seen, visions):
        handle = model.get_decoder().register_forward_pre_hook(at_decoder, with_kwargs=True)
        try:
            with suppress(_Reached):
                model.base_model(input_ids=ids, **inputs)
        finally:
            handle.remove()
    given = family.given(inputs)
    if not seen and given is not None:
        seen = family.read(model, given, inputs)
    return Probe(reached["inputs_embeds"], seen)


def see(model: Any, family: Family, ids: Tensor, inputs: dict[str, Any], cache: FeatureCache | None) -> list[Vision]:
    """Only run (or recall) the vision side: one `Vision` per image."""
    given = family.given(inputs)
    if given is not None:
        return family.read(model, given, inputs)
    seen: list[Vision] = []
    with _recorded(model, family, cache, seen, None, leave=True), suppress(_Reached):
        model.base_model(input_ids=ids, **inputs)
    return seen


@contextmanager
def _recorded(
    model: Any,
    family: Family,
    cache: FeatureCache | None,
    seen: list[Vision],
    visions: list[Vision] | None,
    leave: bool = False,
) -> Iterator[None]:
    """Inside, the base model's `get_image_features` notes what it computes in `seen`."""
    base = model.base_model
    before = base.__dict__.get("get_image_features")
    compute = base.get_image_features

    def get_image_features(**inputs: Any) -> Any:
        if visions is not None:
            seen.extend(visions)
            return family.output(visions)
        output, parts = encode(family, model, compute, inputs, cache)
        seen.extend(parts)
        if leave:
            raise _Reached
        return output

    base.__dict__["get_image_features"] = get_image_features
    try:
        yield
    finally:
        if before is None:
            del base.__dict__["get_image_features"]
        else:
            base.__dict__["get_image_features"] = before

"""A model whose vision tower computes less, for a while."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from vlprune.devices import copy_to_device
from vlprune.errors import UnsupportedModel
from vlprune.pruning.feature_cache import tower_settings
from vlprune.pruning.wrappers import unwrap
from vlprune.vision.merging import merging_forwards
from vlprune.vision.repeated_patches import encode_patches_once
from vlprune.vision.repeats import find_repeats

#: The towers that can be made cheaper, and how many tokens they put before their patches, registers apart.
TOWERS = {"CLIPVisionModel": 1, "SiglipVisionModel": 0, "Dinov2Model": 1, "Dinov2WithRegistersModel": 1}
#: Towers that take images of any size as patches, of which those that repeat can be left out.
PATCH_TOWERS = (
    "Qwen2VisionTransformerPretrainedModel",
    "Qwen2_5_VisionTransformerPretrainedModel",
    "Qwen3VLVisionModel",
)


class CheaperTower:
    """Makes a model's vision tower compute less, until `close()` or the end of the `with`; with or without a pruner.

    Args:
        model: a transformers model with a vision tower of CLIP, SigLIP, DINOv2 or Qwen-VL.
        merge: the share of patches that are merged into others by the tower's last layer, from 0 to below 1. Every
            layer merges as many pairs of similar patches (ToMe; Bolya et al., ICLR 2023), and in the end every patch
            has the features of the token that it was merged into, so that nothing behind the tower changes its size.
        repeats: True encodes images (tiles, frames) of a call that are equal bit for bit once. A number t, above 0 and
            up to 1, also those whose pixels, as the tower gets them, have a cosine of at least t with those of the
            latest image before them that is encoded; a small thing that moves hardly changes that cosine.

    Qwen-VL's towers merge nothing; with `repeats=True` they encode equal *tokens* of an image or video once, such as
    the empty parts of a page or what stands still on a screen.

    What is off changes nothing, bit for bit. `merge`, `repeats` with a number, and tokens that repeat change the
    tower's features; images that repeat may change their rounding. A pruner's cache keeps features apart that were made
    in different ways.
    Methods that need the tower's attention (VisionZip) and CUDA graphs of the tower are refused meanwhile.

    >>> from vlprune import Script, attach, pocket
    >>> model, processor, clip = pocket.load()
    >>> image = torch.zeros(3, 192, 192, dtype=torch.uint8)
    >>> inputs = processor(images=image, text="USER: <image> is there a red star? ASSISTANT:", return_tensors="pt")
    >>> with CheaperTower(model, merge=0.5), attach(model, Script(keep=64), processor=processor, dual_encoder=clip):
    ...     out = model.generate(**inputs, max_new_tokens=1)
    >>> processor.batch_decode(out[:, inputs["input_ids"].shape[1] :])
    ['no']
    """

    def __init__(self, model: Any, *, merge: float = 0.0, repeats: bool | float | None = None) -> None:
        _check_options(merge, repeats)
        self._patched: list[tuple[Any, Any, Any]] = []
        towers = find_towers(unwrap(model))
        if not merge and not repeats:
            return
        made: list[tuple[Any, Callable[..., Any]]] = []
        for tower in towers:
            kind = DistinctTokens if type(tower).__name__ in PATCH_TOWERS else DistinctImages
            made.append((tower, kind(tower, merge, repeats)))
            made += merging_forwards(tower, merge, leading_tokens(tower)) if merge else []
        for module, forward in made:  # when all was found to be in order
            self._patch(module, forward)

    def _patch(self, module: Any, forward: Callable[..., Any]) -> None:
        """Give a module a forward of its own until `close`."""
        self._patched.append((module, forward, module.__dict__.get("forward")))
        module.__dict__["forward"] = forward

    def __enter__(self) -> CheaperTower:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Give the model its tower back."""
        for module, forward, before in reversed(self._patched):
            if module.__dict__.get("forward") is not forward:  # a pruner that came before was detached first
                continue
            if before is None:
                module.__dict__.pop("forward", None)
            else:
                module.__dict__["forward"] = before
        self._patched = []


class CheaperForward:
    """The forward of a tower, in place of its own; `settings` are `merge` and `repeats`."""

    def __init__(self, tower: Any, merge: float, repeats: bool | float | None) -> None:
        self._tower, self._original = tower, tower.forward
        self.settings = (merge, repeats)

    def __deepcopy__(self, memo: object) -> NoReturn:
        raise TypeError("a model with a CheaperTower cannot be copied: close it first.")

    def __reduce__(self) -> NoReturn:
        raise TypeError("a model with a CheaperTower cannot be pickled: close it first.")


class DistinctImages(CheaperForward):
    """For a tower that takes images of one size: those that repeat are encoded once."""

    def __call__(self, pixel_values: Tensor, **options: Any) -> Any:
        """The original's output, for all images."""
        merge, repeats = self.settings
        asked = options.get("output_attentions")
        if merge and (getattr(self._tower.config, "output_attentions", False) if asked is None else asked):
            raise ValueError(f"output_attentions=True: a tower with merge={merge} has no attention between patches.")
        given = next((name for name, value in options.items() if isinstance(value, Tensor)), None)
        if given is not None:
            raise ValueError(f"{given}: a CheaperTower takes pixel_values alone, all patches of all images.")
        if not repeats or len(pixel_values) < 2:
            return self._original(pixel_values, **options)
        places = find_repeats(pixel_values, None if repeats is True else repeats).tolist()
        distinct = sorted(set(places))
        if len(distinct) == len(places):
            return self._original(pixel_values, **options)
        number = {place: i for i, place in enumerate(distinct)}
        device = pixel_values.device
        rows = copy_to_device(torch.tensor([number[place] for place in places]), device)
        chosen = pixel_values.index_select(0, copy_to_device(torch.tensor(distinct), device))
        return tree_map_only(Tensor, lambda part: part.index_select(0, rows), self._original(chosen, **options))


class DistinctTokens(CheaperForward):
    """For a tower that takes the patches of images of any size: tokens that repeat are encoded once."""

    def __init__(self, tower: Any, merge: float, repeats: bool | float | None) -> None:
        if merge or repeats is not True:
            name, value = ("merge", merge) if merge else ("repeats", repeats)
            raise ValueError(f"{name}={value!r}: a {type(tower).__name__} takes repeats=True alone.")
        super().__init__(tower, merge, repeats)

    def __call__(self, hidden_states: Tensor, grid_thw: Tensor, **options: Any) -> Any:
        """The original's output, for all patches."""
        asked = next((name for name in ("output_hidden_states", "output_attentions") if options.get(name)), None)
        if asked is not None:
            raise ValueError(f"{asked}=True: a tower with repeats=True does not see all patches.")
        return encode_patches_once(self._tower, self._original, hidden_states, grid_thw, **options)


def leading_tokens(tower: Any) -> int:
    """How many tokens a tower puts before its patches: class token and registers."""
    return TOWERS[type(tower).__name__] + getattr(tower.config, "num_register_tokens", 0)


def find_towers(model: Any, known: Collection[str] = (*TOWERS, *PATCH_TOWERS)) -> list[Any]:
    """The model's vision towers; raises where they are not of the `known` classes, or are already changed."""
    from transformers import PreTrainedModel

    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModel(f"model is a {type(model).__name__}: pass a transformers model with a vision tower.")
    decoder = model.get_decoder()
    parts = [child for child in model.base_model.children() if isinstance(child, PreTrainedModel)]
    towers = [part for part in parts if part is not decoder]
    unknown = next((part for part in towers if type(part).__name__ not in known), None)
    if unknown is not None or not towers:
        found = "no vision tower" if unknown is None else f"a {type(unknown).__name__}"
        raise UnsupportedModel(
            f"model is a {type(model).__name__} with {found}: a CheaperTower takes towers of {', '.join(known)}."
        )
    if any(tower_settings(towers)):
        raise RuntimeError("model already has a CheaperTower: close that first.")
    return towers


def _check_options(merge: Any, repeats: Any) -> None:
    if isinstance(merge, bool) or not isinstance(merge, (int, float)) or not 0 <= merge < 1:
        raise ValueError(f"merge={merge!r}: a share of the patches, from 0 to below 1.")
    if repeats is not None and not isinstance(repeats, bool) and not (isinstance(repeats, float) and 0 < repeats <= 1):
        raise ValueError(
            f"repeats={repeats!r}: choose from None, True for equal images, and a cosine above 0 up to 1.0 for nearly "
            "equal ones."
        )

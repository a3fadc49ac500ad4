"""How vLLM hands over the images and videos of each family, and how their tokens lie.

An *item* is one image or video: its tensors by the names that vLLM has for them, without a batch dimension. Shapes
come from the same code as in `attach`, which needs no more of a model than its config.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from math import isqrt
from types import SimpleNamespace
from typing import Any, ClassVar

import torch
from torch import Tensor

from vlprune.models.base import Family, Modality
from vlprune.models.internvl import tiled_shape
from vlprune.models.llava import leading_shape
from vlprune.models.llava_next import image_shape, tiled_images
from vlprune.models.llava_onevision import pooled_side
from vlprune.models.registry import FAMILIES
from vlprune.types import Shape, grid_shape

Item = dict[str, Any]
#: Fields that lie one after another in a batch, in pieces of different lengths.
FLAT = ("pixel_values", "pixel_values_videos")


@lru_cache(maxsize=256)
def keep_structure(shape: Shape) -> Shape:
    """The shape with structure that always stays: vLLM counts a prompt's tokens before it is known which rows stay."""
    return shape if shape.lines is None else replace(shape, lines=None)


class ServedFamily:
    """One family in vLLM. `name` is that of its `Family`."""

    name: ClassVar[str]
    #: The module whose input is the tower's states, by its place in the model.
    projector: ClassVar[str] = "multi_modal_projector"
    #: The tower's layers, and, in a layer, vLLM's attention, which is called with queries and keys.
    tower_layers: ClassVar[str] = "vision_tower.vision_model.encoder.layers"
    layer_attention: ClassVar[str] = "self_attn.attn"

    @property
    def family(self) -> Family:
        return FAMILIES[self.name]

    def shapes(self, config: Any, modality: str, item: Mapping[str, Any], length: int) -> list[Shape]:
        """The shape of an item of `length` tokens; several where each frame of a video is an image of its own."""
        raise NotImplementedError

    def flat_size(self, modality: str, item: Mapping[str, Any]) -> int:
        """The length of an item's part of a flat field."""
        raise NotImplementedError

    def is_flat(self, name: str) -> bool:
        return False

    def parts(self, model: Any) -> Any:
        """The model as a `Family`'s methods see it: its config, and the modules that they call."""
        return SimpleNamespace(config=model.config, base_model=model)

    def arrange_states(self, model: Any, modality: str, states: Tensor, items: list[Item], shapes: list[Shape]) -> Any:
        """The tower's states (images, patches, d_v) by item and in the order of their tokens."""
        kind = Modality(modality, (), "", 0)
        return self.family.arrange_patches(self.parts(model), kind, states, self.inputs(items), shapes)

    def inputs(self, items: list[Item]) -> dict[str, Any]:
        """What a `Family` reads of the encoder's arguments."""
        return {}

    def leading_tokens(self, config: Any) -> int:
        """How many of the tower's tokens come before the patches: its class token, where the LLM does not get it."""
        return int(config.vision_feature_select_strategy == "default")

    def has_class_token(self, config: Any) -> bool:
        """Whether a token can be made of the tower's class token."""
        return bool(self.leading_tokens(config))

    def shuffle(self, model: Any, values: Tensor) -> Tensor:
        """Values of patches, arranged as the projector gets its states."""
        return values

    # --- batches ---

    def split(self, config: Any, modality: str, batch: Mapping[str, Any]) -> list[Item]:
        """The items of a batch, as `embed_multimodal` gets it."""
        count = len(next(value for name, value in batch.items() if not self.is_flat(name) and _length(value)))
        items: list[Item] = [{} for _ in range(count)]
        for name, value in batch.items():
            if not self.is_flat(name):
                alone = _length(value) == 0  # a field that all items share
                for i, item in enumerate(items):
                    item[name] = value if alone else value[i]
        for name, value in batch.items():
            if self.is_flat(name):
                pieces = value.split([self.flat_size(modality, item) for item in items])
                for item, piece in zip(items, pieces):
                    item[name] = piece
        return items

    def join(self, items: Sequence[Item]) -> dict[str, Any]:
        """The batch of these items."""
        return {name: self._joined(name, [item[name] for item in items]) for name in items[0]}

    def _joined(self, name: str, values: list[Any]) -> Any:
        if not all(isinstance(value, Tensor) for value in values):
            return values
        if self.is_flat(name):
            return torch.cat(values)
        if name.endswith("token_id"):
            return values[0]
        return torch.stack(values) if len({value.shape for value in values}) == 1 else values


def _length(value: Any) -> int:
    return 0 if isinstance(value, Tensor) and value.ndim == 0 else len(value)


class Llava(ServedFamily):
    name = "llava"

    def shapes(self, config: Any, modality: str, item: Mapping[str, Any], length: int) -> list[Shape]:
        side = isqrt(length)
        return [leading_shape((side, side), length - side * side)]


class LlavaNext(ServedFamily):
    name = "llava_next"

    def shapes(self, config: Any, modality: str, item: Mapping[str, Any], length: int) -> list[Shape]:
        model = _packing_model(self.name, config)
        return [keep_structure(image_shape(model, image)) for image in tiled_images(model, self.inputs([dict(item)]))]

    def split(self, config: Any, modality: str, batch: Mapping[str, Any]) -> list[Item]:
        """The items without the empty tiles that the processor adds where several images of a prompt differ."""
        items = super().split(config, modality, batch)
        if "image_sizes" in batch:
            for item, image in zip(items, tiled_images(_packing_model(self.name, config), self.inputs(items))):
                item["pixel_values"] = item["pixel_values"][: image.views]
        return items

    def parts(self, model: Any) -> Any:
        packing = _packing_model(self.name, model.config)
        packing.base_model.multi_modal_projector = model.multi_modal_projector
        return packing

    def inputs(self, items: list[Item]) -> dict[str, Any]:
        return {"image_sizes": torch.stack([item["image_sizes"].cpu() for item in items])}


class LlavaOnevision(LlavaNext):
    name = "llava_onevision"

    def shapes(self, config: Any, modality: str, item: Mapping[str, Any], length: int) -> list[Shape]:
        if modality == "image":
            return super().shapes(config, modality, item, length)
        side = pooled_side(SimpleNamespace(config=config))
        return [grid_shape("video", "frame", (side, side), (length - 1) // side**2, extra=1)]

    def inputs(self, items: list[Item]) -> dict[str, Any]:
        return super().inputs(items) if "image_sizes" in items[0] else {}


def _packing_model(name: str, config: Any) -> Any:
    """As much of a model as says how its tiles are packed: transformers' own function for it."""
    if name == "llava_next":
        from transformers.models.llava_next.modeling_llava_next import LlavaNextModel as Model
    else:
        from transformers.models.llava_onevision.modeling_llava_onevision import LlavaOnevisionModel as Model
    pack = partial(Model.pack_image_features, SimpleNamespace(config=config))
    return SimpleNamespace(config=config, base_model=SimpleNamespace(pack_image_features=pack))


class InternVL(ServedFamily):
    name = "internvl"
    tower_layers = "vision_tower.encoder.layer"
    layer_attention = "attention.attn"

    def is_flat(self, name: str) -> bool:
        return name in FLAT

    def flat_size(self, modality: str, item: Mapping[str, Any]) -> int:
        return int(item[f"{modality}_num_patches"])

    def shapes(self, config: Any, modality: str, item: Mapping[str, Any], length: int) -> list[Shape]:
        count = self.flat_size(modality, item)
        if modality == "image":
            return [tiled_shape(length // count, count)]
        return [tiled_shape(length // count, 1)] * count

    def arrange_states(self, model: Any, modality: str, states: Tensor, items: list[Item], shapes: list[Shape]) -> Any:
        return states.flatten(0, 1).split([shape.n for shape in shapes])

    def leading_tokens(self, config: Any) -> int:
        return 1

    def has_class_token(self, config: Any) -> bool:
        return False  # four patches make a token, and there is one class token

    def shuffle(self, model: Any, values: Tensor) -> Tensor:
        side = isqrt(values.shape[1])
        square = values.reshape(len(values), side, side, -1)
        return model.pixel_shuffle(square, scale_factor=model.downsample_ratio).flatten(1, 2)


@dataclass(frozen=True)
class Steps:
    """Where an item's tokens lie in time, height and width, from its first token on.

    `offsets` (n, 3); what follows the item, or the frame that stands apart, goes on `extent` after its first token.
    """

    offsets: Tensor
    extent: int


class QwenVL(ServedFamily):
    """Images and videos of any size, placed in time, height and width."""

    projector = "visual.merger"
    tower_layers = "visual.blocks"
    layer_attention = "attn.attn"

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]

    def is_flat(self, name: str) -> bool:
        return name in FLAT

    def flat_size(self, modality: str, item: Mapping[str, Any]) -> int:
        return int(torch.as_tensor(item[f"{modality}_grid_thw"]).prod())

    def has_class_token(self, config: Any) -> bool:
        return False

    def grid(self, config: Any, modality: str, item: Mapping[str, Any]) -> tuple[int, int, int]:
        """Time, rows and columns of an item's tokens."""
        time, high, wide = (int(size) for size in item[f"{modality}_grid_thw"])
        merge = config.vision_config.spatial_merge_size
        return time, high // merge, wide // merge

    def shapes(self, config: Any, modality: str, item: Mapping[str, Any], length: int) -> list[Shape]:
        time, rows, columns = self.grid(config, modality, item)
        return [grid_shape(modality, "image" if modality == "image" else "frame", (rows, columns), time)]

    def steps(self, config: Any, modality: str, item: Mapping[str, Any]) -> Steps:
        """Where an item's tokens lie."""
        seconds = item.get("second_per_grid_ts")
        speed = getattr(config.vision_config, "tokens_per_second", 1.0)
        interval = 1.0 if modality == "image" else (1.0 if seconds is None else float(seconds)) * speed
        return _steps(*self.grid(config, modality, item), interval)

    def arrange_states(self, model: Any, modality: str, states: Tensor, items: list[Item], shapes: list[Shape]) -> Any:
        kind = Modality(modality, (), "", 0)
        inputs: dict[str, Any] = {
            f"{modality}_grid_thw": torch.stack([item[f"{modality}_grid_thw"].cpu() for item in items])
        }
        parts = self.parts(model)
        ordered = self.family.restore_patch_order(parts, kind, states.flatten(0, -2), inputs)  # type: ignore[attr-defined]
        return self.family.arrange_patches(parts, kind, ordered, inputs, shapes)


class Qwen3VL(QwenVL):
    """The frames of a video stand apart, each behind its time in words, and each is placed like an image."""

    def steps(self, config: Any, modality: str, item: Mapping[str, Any]) -> Steps:
        return _steps(*self.grid(config, modality, item), 0.0)


@lru_cache(maxsize=256)
def _steps(time: int, rows: int, columns: int, interval: float) -> Steps:
    grid = torch.cartesian_prod(torch.arange(time), torch.arange(rows), torch.arange(columns)).view(-1, 3)
    grid[:, 0] = (grid[:, 0].double() * interval).long()
    return Steps(grid, int(grid.max()) + 1)


LLAVA, LLAVA_NEXT, LLAVA_ONEVISION, INTERNVL = Llava(), LlavaNext(), LlavaOnevision(), InternVL()
QWEN2_VL, QWEN2_5_VL, QWEN3_VL = QwenVL("qwen2_vl"), QwenVL("qwen2_5_vl"), Qwen3VL("qwen3_vl")

"""What a model family must say about itself, and which family a model belongs to.

A family knows where a model keeps its visual tokens and how they lie. It knows nothing of methods or of pruning.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any, ClassVar

from torch import Tensor

from vlprune.errors import UnsupportedModel
from vlprune.models.tower_attention import RecordedCall, TowerAttention
from vlprune.types import Shape


@dataclass(frozen=True)
class Vision:
    """One image or video after the vision tower.

    `shape` says how its tokens lie in the prompt. `tower` (shape.n, d_v) are the hidden states behind those that
    may be dropped, `features` (shape.length, d) all its tokens. `attention` (shape.n,) and `keys` (shape.n, d_k) are
    as in `TokenView`, and `cls` (parts, d_v) the class token of each part. Each is None where it is not there or nobody
    needs it.
    """

    shape: Shape
    tower: Tensor | None = None
    features: Tensor | None = None
    attention: Tensor | None = None
    keys: Tensor | None = None
    cls: Tensor | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """What is there, by name."""
        named = {name: getattr(self, name) for name in ("tower", "features", "attention", "keys", "cls")}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def nbytes(self) -> int:
        return sum(value.nbytes for value in self.tensors.values())


@dataclass(frozen=True)
class Stream:
    """One kind of visual input: "image" or "video".

    `pixels` are the forward's arguments that may bring it, `encoder` the name of the base model's function that
    encodes it, `placeholder` the token id that stands for one of its tokens in `input_ids`.
    """

    kind: str
    pixels: tuple[str, ...]
    encoder: str
    placeholder: int


class Family(ABC):
    """One file in `vlprune.models` subclasses this. The class attributes are what `vlprune models` prints."""

    name: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]
    prunes: ClassVar[str]
    #: The ways to place the tokens that are left, the default first: "renumbered", "original" or "grid".
    positions: ClassVar[tuple[str, ...]] = ("renumbered", "original")
    relevance: ClassVar[str]
    tested: ClassVar[str]
    #: Keyword arguments of the model's forward that carry images or say how to read them.
    vision_inputs: ClassVar[tuple[str, ...]]
    #: Whether images of one model may differ in their number of tokens.
    variable_length: ClassVar[bool] = True
    #: Whether the vision tower is that of a published dual encoder, for `attach(..., dual_encoder=)`.
    has_dual_encoder: ClassVar[bool] = False

    def check(self, model: Any) -> None:
        """Raise `UnsupportedModel` where the class fits but this checkpoint's parts do not."""

    def streams(self, model: Any) -> list[Stream]:
        """The kinds of visual input that the model takes."""
        streams = [Stream("image", ("pixel_values",), "get_image_features", model.config.image_token_id)]
        if hasattr(model.base_model, "get_video_features") and hasattr(model.config, "video_token_id"):
            streams.append(Stream("video", ("pixel_values_videos",), "get_video_features", model.config.video_token_id))
        return streams

    @abstractmethod
    def shapes(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Shape]:
        """Say what the stream's encoder, called with `inputs`, has encoded: the shape of each image or video.

        In the order of their placeholders. `runs` are the lengths of the stretches of neighbouring placeholders
        in the prompt, for models that tell images apart by nothing else.
        """

    def states(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any]) -> Tensor | None:
        """The tower's hidden states that the model projects, (images, patches, d_v), if the output has them."""
        return None

    def arranged(
        self, model: Any, stream: Stream, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        """Values of the tower's patches (images, patches, c) as the tokens lie: (shape.n, g · c) for each shape.

        Where the model makes one token of g patches, their values stand side by side.
        """
        return list(values)

    def project(self, model: Any, states: Tensor) -> Tensor:
        """From arranged tower states (B, k, g · d_v) to tokens (B, k, d)."""
        return model.base_model.multi_modal_projector(states)

    def attention_module(self, model: Any, stream: Stream, inputs: dict[str, Any]) -> Any:
        """The module of the vision tower whose attention tells what it looks at, None if there is none to watch."""
        return None

    def tower_attention(
        self, model: Any, stream: Stream, call: RecordedCall, output: Any, inputs: dict[str, Any]
    ) -> TowerAttention:
        """What that module, in that call, made its tokens look at."""
        raise NotImplementedError

    def read(
        self,
        model: Any,
        stream: Stream,
        output: Any,
        inputs: dict[str, Any],
        runs: list[int],
        call: RecordedCall | None = None,
    ) -> list[Vision]:
        """One `Vision` per image or video of the stream; `call` is that of the watched module, if it is wanted."""
        shapes = self.shapes(model, stream, output, inputs, runs)
        visions = [Vision(shape) for shape in shapes]

        def with_values(name: str, values: Tensor | None, each: Callable[[Tensor], Tensor]) -> list[Vision]:
            if values is None:
                return visions
            parts = self.arranged(model, stream, values, inputs, shapes)
            changes: list[dict[str, Any]] = [{name: each(part)} for part in parts]
            return [replace(vision, **change) for vision, change in zip(visions, changes)]

        visions = with_values("tower", self.states(model, stream, output, inputs), lambda part: part)
        if self.encodes_independently(stream, inputs):
            visions = [replace(vision, features=image) for vision, image in zip(visions, output.pooler_output)]
        if call is not None:
            look = self.tower_attention(model, stream, call, output, inputs)
            width = look.keys.shape[-1]
            visions = with_values("attention", look.attention[..., None], lambda part: part.mean(dim=1))
            visions = with_values("keys", look.keys, lambda part: part.view(len(part), -1, width).mean(dim=1))
            if look.cls is not None:
                counts = [len(shape.parts) for shape in shapes]
                if sum(counts) == len(look.cls):
                    visions = [replace(one, cls=cls) for one, cls in zip(visions, look.cls.split(counts))]
        return visions

    def given(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What the caller encoded beforehand and passes in place of pixels: the encoders' outputs by kind."""
        return inputs.get("mm_encoder_outputs") or {}

    def encodes_independently(self, stream: Stream, inputs: dict[str, Any]) -> bool:
        """Whether each image's features depend on nothing but its own slice of the pixels."""
        return False

    def output(self, visions: list[Vision]) -> Any:
        """Of a sliceable stream: something that the model's forward takes for the encoder's output."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        return BaseModelOutputWithPooling(pooler_output=[vision.features for vision in visions])


FAMILIES: list[Family] = []


def register_family(family: Family) -> Family:
    """Add a family; the newest entry for a class name wins.

    >>> from vlprune.models import list_families
    >>> "llava" in [family.name for family in list_families()]
    True
    """
    FAMILIES.insert(0, family)
    return family


def list_families() -> list[Family]:
    """All families, in the order of their names."""
    return sorted(FAMILIES, key=lambda family: family.name)


def family_of(model: Any) -> Family:
    """The family of a model, by the names of its class and its parents.

    A class that no family names falls to the one that names none (the generic one), which refuses what it cannot do.

    >>> import torch
    >>> family_of(torch.nn.Linear(1, 1))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    vlprune.errors.UnsupportedModel: model is a Linear, which vlprune does not support; the nearest supported ...
    """
    names = [parent.__name__ for parent in type(model).__mro__]
    for name in names:
        for family in FAMILIES:
            if name in family.classes:
                family.check(model)
                return family
    for family in FAMILIES:
        if not family.classes:
            family.check(model)
            return family
    raise unsupported(model)


def unsupported(model: Any) -> UnsupportedModel:
    """The error that names the model's class and the nearest supported one."""
    name = type(model).__name__
    known = {name: family.name for family in FAMILIES for name in family.classes}
    nearest = get_close_matches(name, known, n=1, cutoff=0.0)[0]
    return UnsupportedModel(
        f"model is a {name}, which vlprune does not support; the nearest supported class is {nearest} "
        f"(family {known[nearest]!r}). See docs/adding-a-model.md."
    )

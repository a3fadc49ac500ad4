"""What a model family must say about itself, and which family a model belongs to.

A family knows where a model keeps its visual tokens and how they lie. It knows nothing of methods or of pruning.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar

from torch import Tensor

from vlprune.errors import UnsupportedModel
from vlprune.models.shape import Shape


@dataclass(frozen=True)
class TokenView:
    """The visual tokens of `B` images, tiles or frames of equal size, as a method sees them.

    `features` (B, n, d) are the tokens as they enter the LLM (after the projector), `grid` is (rows, columns)
    with rows * columns = n where the tokens lie on a grid, (1, n) where they lie on none, and `tower`
    (B, n, d_v) are the vision tower's hidden states of the layer that the model reads, None where the model does
    not expose them. With a budget per frame, `frames` neighbours in the batch are the frames of one video.

    A method that says `needs_attention` also gets, where the tower has them: `attention` (B, n), what each token
    receives at that layer, mean over heads, from the CLS token or, without one, from all tokens on average;
    `keys` (B, n, d_k), that layer's keys, mean over heads; `cls` (B, d_v), the CLS token's hidden state; and
    `project`, from tower states (B, k, d_v) to tokens (B, k, d).

    >>> import torch
    >>> view = TokenView(torch.zeros(1, 6, 8), grid=(2, 3))
    >>> view.n, view.grid
    (6, (2, 3))
    """

    features: Tensor
    grid: tuple[int, int]
    tower: Tensor | None = None
    attention: Tensor | None = None
    keys: Tensor | None = None
    cls: Tensor | None = None
    project: Callable[[Tensor], Tensor] | None = None
    frames: int = 1

    @property
    def n(self) -> int:
        """Visual tokens per image."""
        return self.features.shape[1]


@dataclass(frozen=True)
class Vision:
    """One image or video after the vision tower.

    `shape` says how its tokens lie in the prompt. `tower` (shape.n, d_v) are the hidden states behind those that
    may be dropped, and `features` (shape.length, d) all its tokens; each None where nobody needs it.
    """

    shape: Shape
    tower: Tensor | None = None
    features: Tensor | None = None

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in (self.tower, self.features) if part is not None)


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
    varying: ClassVar[bool] = True

    def check(self, model: Any) -> None:
        """Raise `UnsupportedModel` where the class fits but this checkpoint's parts do not."""

    def streams(self, model: Any) -> list[Stream]:
        """The kinds of visual input that the model takes."""
        streams = [Stream("image", ("pixel_values",), "get_image_features", model.config.image_token_id)]
        if hasattr(model.base_model, "get_video_features") and hasattr(model.config, "video_token_id"):
            streams.append(Stream("video", ("pixel_values_videos",), "get_video_features", model.config.video_token_id))
        return streams

    @abstractmethod
    def read(self, model: Any, stream: Stream, output: Any, inputs: dict[str, Any], runs: list[int]) -> list[Vision]:
        """Say what the stream's encoder, called with `inputs`, has encoded: one `Vision` per image or video.

        In the order of their placeholders. `runs` are the lengths of the stretches of neighbouring placeholders
        in the prompt, for models that tell images apart by nothing else.
        """

    def given(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """What the caller encoded beforehand and passes in place of pixels: the encoders' outputs by kind."""
        return inputs.get("mm_encoder_outputs") or {}

    def sliceable(self, stream: Stream, inputs: dict[str, Any]) -> bool:
        """Whether each image's features depend on nothing but its own slice of the pixels, and `read` gives them."""
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

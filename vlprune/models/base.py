"""What a model family must say about itself, and which family a model belongs to.

A family knows where a model keeps its visual tokens. It knows nothing of methods or of pruning.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any, ClassVar

from torch import Tensor

from vlprune.errors import UnsupportedModel


@dataclass(frozen=True)
class TokenView:
    """The visual tokens of `B` images of equal size, as a method sees them.

    `features` (B, n, d) are the tokens as they enter the LLM (after the projector), `grid` is (rows, columns)
    with rows * columns = n where the tokens lie on a grid, and `tower` (B, n, d_v) are the vision tower's
    hidden states of the layer that the model reads, None where the model does not expose them.

    >>> import torch
    >>> view = TokenView(torch.zeros(1, 6, 8), grid=(2, 3))
    >>> view.n, view.grid
    (6, (2, 3))
    """

    features: Tensor
    grid: tuple[int, int]
    tower: Tensor | None = None

    @property
    def n(self) -> int:
        """Visual tokens per image."""
        return self.features.shape[1]


@dataclass(frozen=True)
class Vision:
    """One image after the vision tower: projected `features` (n, d) and the `tower` states behind them (n, d_v)."""

    features: Tensor
    tower: Tensor | None

    @property
    def nbytes(self) -> int:
        return self.features.nbytes + (self.tower.nbytes if self.tower is not None else 0)


class Family(ABC):
    """One file in `vlprune.models` subclasses this. The class attributes are what `vlprune models` prints."""

    name: ClassVar[str]
    classes: ClassVar[tuple[str, ...]]
    prunes: ClassVar[str]
    positions: ClassVar[str] = "renumbered"
    relevance: ClassVar[str]
    tested: ClassVar[str]
    #: Keyword arguments of the model's forward that carry images or say how to read them.
    vision_inputs: ClassVar[tuple[str, ...]]

    def check(self, model: Any) -> None:
        """Raise `UnsupportedModel` where the class fits but this checkpoint's parts do not."""

    def has_vision(self, inputs: dict[str, Any]) -> bool:
        """Whether the call brings images."""
        return inputs.get("pixel_values") is not None or self.given(inputs) is not None

    def placeholder(self, model: Any) -> int:
        """The token id that stands for one visual token in `input_ids`."""
        return model.config.image_token_id

    @abstractmethod
    def read(self, model: Any, output: Any, inputs: dict[str, Any]) -> list[Vision]:
        """Take what `get_image_features` returned apart: one `Vision` per image, in order."""

    @abstractmethod
    def output(self, visions: list[Vision]) -> Any:
        """The reverse of `read`: something the model's forward accepts from `get_image_features`."""

    def given(self, inputs: dict[str, Any]) -> Any | None:
        """What the caller encoded beforehand and passes in place of pixels, if anything."""
        return (inputs.get("mm_encoder_outputs") or {}).get("image")

    def cacheable(self, inputs: dict[str, Any]) -> bool:
        """Whether each image's features depend on nothing but its own slice of `pixel_values`."""
        return False

    def grid(self, model: Any, n: int) -> tuple[int, int]:
        """(rows, columns) of an image of `n` tokens; (1, n) where they lie on no grid."""
        side = round(n**0.5)
        return (side, side) if side * side == n else (1, n)


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
    known = {name: family.name for family in FAMILIES for name in family.classes}
    nearest = get_close_matches(names[0], known, n=1, cutoff=0.0)[0]
    raise UnsupportedModel(
        f"model is a {names[0]}, which vlprune does not support; the nearest supported class is {nearest} "
        f"(family {known[nearest]!r}). See docs/adding-a-model.md."
    )

"""What a model family says about its models: where they keep their visual tokens and how these lie in the prompt.

A family knows nothing of methods or of pruning.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from vlprune.models.tower_attention import RecordedCall, TowerAttention
from vlprune.types import Shape


@dataclass(frozen=True)
class EncodedImage:
    """One image or video after the vision tower.

    `shape` says how its tokens lie in the prompt. `tower` (shape.n, d_v) are the tower's hidden states of the tokens
    that may be dropped, `features` (shape.length, d) all its tokens after the projector. `attention` (shape.n,) and
    `keys` (shape.n, d_k) are as in `TokenView`, and `cls` (parts, d_v) is the class token of each part. A tensor is
    None where the model does not have it or nobody asked for it.
    """

    shape: Shape
    tower: Tensor | None = None
    features: Tensor | None = None
    attention: Tensor | None = None
    keys: Tensor | None = None
    cls: Tensor | None = None

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors that are not None, by name."""
        named = {name: getattr(self, name) for name in ("tower", "features", "attention", "keys", "cls")}
        return {name: value for name, value in named.items() if value is not None}

    @property
    def nbytes(self) -> int:
        """Bytes of memory that the tensors take."""
        return sum(value.nbytes for value in self.tensors.values())


@dataclass(frozen=True)
class Modality:
    """One kind of visual input: "image" or "video".

    `pixels` are the forward's arguments that may carry its pixels, `encoder` is the name of the base model's method
    that encodes them, `placeholder` the token id that stands for one visual token in `input_ids`.
    """

    kind: str
    pixels: tuple[str, ...]
    encoder: str
    placeholder: int


class Family(ABC):
    """Models of one architecture. A subclass describes them; the class attributes are what `vlprune models` prints.

    The methods get the `model`, the `modality` in question, the `output` of that modality's encoder, and `inputs`, the
    arguments that the encoder was called with, by name. "Image" stands for image or video.
    """

    name: ClassVar[str]
    #: Names of model classes in transformers; subclasses of these are included.
    classes: ClassVar[tuple[str, ...]]
    #: What is pruned, in one phrase.
    prunes: ClassVar[str]
    #: The position numberings for the tokens that are left, the default first: "renumbered", "original" or "grid".
    positions: ClassVar[tuple[str, ...]] = ("renumbered", "original")
    #: Whose embeddings can measure relevance, in one phrase.
    relevance: ClassVar[str]
    #: What the family was tested with, in one phrase.
    tested: ClassVar[str]
    #: Arguments of the model's forward that carry images or say how to read them.
    vision_inputs: ClassVar[tuple[str, ...]]
    #: Whether images of one model may differ in their number of tokens.
    variable_length: ClassVar[bool] = True
    #: Whether the vision tower is that of a published dual encoder, for `attach(..., dual_encoder=)`.
    has_dual_encoder: ClassVar[bool] = False

    def check(self, model: Any) -> None:
        """Raise `UnsupportedModel` if the model's class belongs to the family but one of its parts does not."""

    def modalities(self, model: Any) -> list[Modality]:
        """The kinds of visual input that the model takes."""
        found = [Modality("image", ("pixel_values",), "get_image_features", model.config.image_token_id)]
        if hasattr(model.base_model, "get_video_features") and hasattr(model.config, "video_token_id"):
            found.append(Modality("video", ("pixel_values_videos",), "get_video_features", model.config.video_token_id))
        return found

    def shortcuts(self, model: Any) -> dict[str, Any]:
        """Functions by name, in place of the base model's own while it encodes: they give the same numbers sooner."""
        return {}

    @abstractmethod
    def image_shapes(
        self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any], run_lengths: list[int]
    ) -> list[Shape]:
        """The shape of each encoded image, in the order of their placeholders.

        `run_lengths` are the lengths of the runs of neighbouring placeholders in the prompt, for models that tell
        images apart by nothing else.
        """

    def tower_states(self, model: Any, modality: Modality, output: Any, inputs: dict[str, Any]) -> Tensor | None:
        """The tower's hidden states that the model projects, (images, patches, d_v); None if the output lacks them."""
        return None

    def arrange_patches(
        self, model: Any, modality: Modality, values: Tensor, inputs: dict[str, Any], shapes: list[Shape]
    ) -> list[Tensor]:
        """Values of the tower's patches (images, patches, c) in the order of the tokens: (shape.n, g · c) per shape.

        Where the model makes one token of g patches, their values stand side by side.
        """
        return list(values)

    def project(self, model: Any, states: Tensor) -> Tensor:
        """Tokens (B, k, d) from arranged tower states (B, k, g · d_v)."""
        return model.base_model.multi_modal_projector(states)

    def attention_module(self, model: Any, modality: Modality, inputs: dict[str, Any]) -> Any:
        """The attention module of the tower layer that the model reads; None if the family has no access to it."""
        return None

    def tower_attention(
        self, model: Any, modality: Modality, call: RecordedCall, output: Any, inputs: dict[str, Any]
    ) -> TowerAttention:
        """Attention that each patch received in the recorded call of `attention_module`."""
        raise NotImplementedError

    def read_encoder_output(
        self,
        model: Any,
        modality: Modality,
        output: Any,
        inputs: dict[str, Any],
        run_lengths: list[int],
        call: RecordedCall | None = None,
    ) -> list[EncodedImage]:
        """The encoded images; with attention and keys if `call`, the recorded call of `attention_module`, is given."""
        shapes = self.image_shapes(model, modality, output, inputs, run_lengths)
        found: dict[str, Sequence[Tensor]] = {}
        states = self.tower_states(model, modality, output, inputs)
        if states is not None:
            found["tower"] = self.arrange_patches(model, modality, states, inputs, shapes)
        if self.encodes_independently(modality, inputs):
            found["features"] = list(output.pooler_output)
        if call is not None:
            tower = self.tower_attention(model, modality, call, output, inputs)
            found.update(self._attention_by_image(model, modality, tower, inputs, shapes))
        return [
            EncodedImage(shape, **{name: values[i] for name, values in found.items()}) for i, shape in enumerate(shapes)
        ]

    def _attention_by_image(
        self, model: Any, modality: Modality, tower: TowerAttention, inputs: dict[str, Any], shapes: list[Shape]
    ) -> dict[str, Sequence[Tensor]]:
        """Attention, keys and class tokens of each image; a token made of several patches gets the patches' mean."""
        attention = self.arrange_patches(model, modality, tower.attention[..., None], inputs, shapes)
        keys = self.arrange_patches(model, modality, tower.keys, inputs, shapes)
        width = tower.keys.shape[-1]
        found: dict[str, Sequence[Tensor]] = {
            "attention": [part.mean(dim=1) for part in attention],
            "keys": [part.view(len(part), -1, width).mean(dim=1) for part in keys],
        }
        counts = [len(shape.parts) for shape in shapes]
        if tower.cls is not None and sum(counts) == len(tower.cls):
            found["cls"] = tower.cls.split(counts)
        return found

    def precomputed_outputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Encoder outputs that the caller passes in place of pixels, by kind ("image", "video")."""
        return inputs.get("mm_encoder_outputs") or {}

    def encodes_independently(self, modality: Modality, inputs: dict[str, Any]) -> bool:
        """Whether each image's features depend on nothing but its own slice of the pixels."""
        return False

    def make_encoder_output(self, images: list[EncodedImage]) -> Any:
        """An encoder output that the model's forward accepts, from images that were encoded independently."""
        from transformers.modeling_outputs import BaseModelOutputWithPooling

        return BaseModelOutputWithPooling(pooler_output=[image.features for image in images])

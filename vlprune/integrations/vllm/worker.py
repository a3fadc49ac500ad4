"""The workers: encode images once, in pieces that fit, and let the method choose among their tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from vlprune.budget import Budget
from vlprune.devices import Stopwatch
from vlprune.integrations.vllm.families import Item, ServedFamily
from vlprune.integrations.vllm.metrics import count_images, count_seconds
from vlprune.integrations.vllm.request import PruneRequest
from vlprune.integrations.vllm.settings import Settings
from vlprune.integrations.vllm.tower import TowerReader
from vlprune.methods.base import Method
from vlprune.models.base import EncodedImage
from vlprune.pruning.choose import choose_tokens
from vlprune.pruning.dual_encoder import DualEncoder, load_dual_encoder
from vlprune.pruning.feature_cache import FeatureCache
from vlprune.pruning.prompt_images import PromptImage
from vlprune.pruning.question import EmbeddedQuestions

Embed = Callable[..., Any]


@dataclass(frozen=True)
class EncodedItem:
    """One image or video after the tower: its images (of a video perhaps one per frame), each with its features."""

    images: tuple[EncodedImage, ...]

    @property
    def nbytes(self) -> int:
        return sum(image.nbytes for image in self.images)

    @property
    def length(self) -> int:
        return sum(image.shape.length for image in self.images)

    def to(self, device: torch.device) -> EncodedItem:
        def moved(image: EncodedImage) -> EncodedImage:
            return EncodedImage(image.shape, **{name: value.to(device) for name, value in image.tensors.items()})

        return EncodedItem(tuple(map(moved, self.images)))


class ItemEncoder:
    """Encodes items by the model's own code: an image that was encoded before comes from the cache, in host memory.

    vLLM lets as many images into one call as their kept tokens allow; `pieces` are groups of them of which the tower
    makes at most `limit` patches.
    """

    def __init__(self, model: Any, served: ServedFamily, settings: Settings, limit: int) -> None:
        self._model, self._served, self._limit = model, served, limit
        self._tower = TowerReader(model, served, settings)
        self.cache = FeatureCache(settings.cache_bytes)

    def pieces(self, modality: str, items: list[Item]) -> list[range]:
        """The numbers of the items, in groups to be encoded at once."""
        pieces: list[range] = []
        used = 0
        for i, item in enumerate(items):
            size = self._patches(modality, item)
            fits = bool(pieces) and used + size <= self._limit
            pieces[-1:] = [range(pieces[-1].start, i + 1)] if fits else [*pieces[-1:], range(i, i + 1)]
            used = used + size if fits else size
        return pieces

    def encode(self, modality: str, items: list[Item], names: Sequence[str], embed: Embed) -> list[EncodedItem]:
        """The items after the tower. `embed(**batch)` is the model's own encoder."""
        keys = [(modality, name or str(i)) for i, name in enumerate(names)]  # vLLM's dummies have no name
        found: dict[Any, EncodedItem] = {}
        missing: dict[Any, Item] = {}
        for key, item in zip(keys, items):
            known = self.cache.get(key)
            if known is not None:
                found[key] = known
            else:
                missing[key] = item
        if missing:
            found.update(zip(missing, self._encode(modality, list(missing.values()), embed)))
        if all(names):
            count_images(len(missing), len(names) - len(missing))
            for key in missing if self.cache.limit else ():
                self.cache.put(key, found[key].to(torch.device("cpu")))
        device = next(self._model.parameters()).device
        return [found[key].to(device) for key in keys]

    def _patches(self, modality: str, item: Item) -> int:
        """How many patches the tower makes of an item."""
        pixels = item["pixel_values" if modality == "image" else "pixel_values_videos"]
        if self._served.is_flat("pixel_values") and pixels.ndim == 2:  # one row per patch
            return len(pixels)
        patch = self._model.config.vision_config.patch_size
        patch = patch if isinstance(patch, int) else patch[0]
        return int(pixels.shape[:-3].numel() * (pixels.shape[-2] // patch) * (pixels.shape[-1] // patch))

    def _encode(self, modality: str, items: list[Item], embed: Embed) -> list[EncodedItem]:
        served, config = self._served, self._model.config
        with ExitStack() as stack:
            calls = self._tower.recording(stack)
            features = list(embed(**served.join(items)))
        shapes = [served.shapes(config, modality, item, len(one)) for item, one in zip(items, features)]
        flat = [shape for several in shapes for shape in several]
        found = iter(self._tower.read(calls, modality, items, flat))
        encoded = []
        for several, one in zip(shapes, features):
            pieces = one.split([shape.length for shape in several])
            images = (EncodedImage(shape, features=piece, **next(found)) for shape, piece in zip(several, pieces))
            encoded.append(EncodedItem(tuple(images)))
        return encoded


class TokenChooser:
    """Lets the method choose among the tokens of encoded items, by each one's own question and budget."""

    def __init__(self, model: Any, served: ServedFamily, settings: Settings, width: int, dtype: torch.dtype) -> None:
        self._model, self._served, self._settings = model, served, settings
        self._width, self._dtype = width, dtype
        self._dual: DualEncoder | None = None
        self._unread: list[Stopwatch] = []

    def choose(self, items: list[EncodedItem], requests: list[PruneRequest]) -> list[tuple[Tensor, Tensor]]:
        """Of each item: what is left of its features (m, d), and where that lay among its tokens (m,)."""
        alike: dict[tuple[Any, str], list[tuple[int, int]]] = {}
        for i, item in enumerate(items):
            for j, image in enumerate(item.images):
                alike.setdefault((image.shape, repr(requests[i].keep)), []).append((i, j))
        device = next(self._model.parameters()).device
        watch = Stopwatch(device)
        left: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        with torch.no_grad(), watch:
            for places in alike.values():
                images = [items[i].images[j] for i, j in places]
                left.update(zip(places, self._choose_alike(images, [requests[i] for i, _ in places])))
        self._unread.append(watch)
        if device.type == "cpu" or len(self._unread) > 1:  # on a GPU the one before: it is done, and not waited for
            count_seconds(self._unread.pop(0).seconds)
        return [self._together(item, [left[i, j] for j in range(len(item.images))]) for i, item in enumerate(items)]

    @staticmethod
    def _together(item: EncodedItem, left: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
        places, start = [], 0
        for image, (_, at) in zip(item.images, left):
            places.append(at + start)
            start += image.shape.length
        return torch.cat([features for features, _ in left]), torch.cat(places)

    def _choose_alike(self, images: list[EncodedImage], requests: list[PruneRequest]) -> list[tuple[Tensor, Tensor]]:
        """The same for images of one shape and budget, in one call of the method."""
        method = replace(self._settings.method, keep=requests[0].budget)
        features = torch.stack([image.features for image in images if image.features is not None])
        if self._keeps_all(method, images[0]):
            everything = torch.arange(features.shape[1], device=features.device)
            return [(one, everything) for one in features]
        columns = torch.arange(images[0].shape.length)
        ids = torch.zeros(features.shape[:2], dtype=torch.int64, device=features.device)
        rows = [PromptImage(i, 0, columns, image) for i, image in enumerate(images)]
        model, served = self._model, self._served
        choice = choose_tokens(
            method,
            rows,
            ids,
            features[..., : self._width],
            self._questions(requests).query_for,
            lambda states: served.family.project(served.parts(model), states),
            served.family.variable_length,
        )
        left = []
        for i in range(len(images)):
            at = (~choice.drop[i]).nonzero()[:, 0]
            at = at[choice.order[i, at].argsort()]
            left.append((torch.cat([choice.embeds[i, at], features[i, at, self._width :]], dim=1), at))
        return left

    def _keeps_all(self, method: Method, image: EncodedImage) -> bool:
        sizes = [len(part) for part in image.shape.parts]
        shares = Budget.of(method.keep).shares(image.shape.kind, sizes, self._served.family.variable_length)
        return (shares if isinstance(shares, int) else sum(shares)) == sum(sizes)

    def _questions(self, requests: list[PruneRequest]) -> EmbeddedQuestions:
        settings, rows = self._settings, range(len(requests))
        watch = Stopwatch(next(self._model.parameters()).device)
        sign = getattr(settings.method, "sign", None)
        if not settings.method.reads_question:
            return EmbeddedQuestions(False, None, sign, {}, {}, {}, watch)
        texts: dict[int, str | None] = {row: requests[row].text or None for row in rows}
        if settings.reads_text:
            dual = self._load_dual_encoder()
            means = dict(zip(rows, dual.text([request.text for request in requests])))
            return EmbeddedQuestions(True, dual, sign, texts, means, {}, watch)
        tokens = {row: self._embed_ids(requests[row].ids) for row in rows}
        means = {row: token.float().mean(dim=0, keepdim=True) for row, token in tokens.items()}
        return EmbeddedQuestions(True, None, sign, texts, means, tokens, watch)

    def _embed_ids(self, ids: tuple[int, ...]) -> Tensor:
        device = next(self._model.parameters()).device
        return self._model.get_language_model().embed_input_ids(torch.tensor(ids, device=device))

    def _load_dual_encoder(self) -> DualEncoder:
        if self._dual is None:
            table = SimpleNamespace(weight=next(self._model.parameters()))  # vLLM's is not where transformers has it
            like = SimpleNamespace(config=self._model.config, dtype=self._dtype, get_input_embeddings=lambda: table)
            self._dual = load_dual_encoder(self._settings.dual_encoder, like, None)
        return self._dual

"""Plan a prompt: merge its images, let the method choose, and say what is left of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vlprune.devices import Stopwatch
from vlprune.methods.base import Method
from vlprune.methods.in_llm import InLLMMethod
from vlprune.models.base import Family
from vlprune.pruning.choose import Choice, choose_tokens
from vlprune.pruning.feature_cache import FeatureCache
from vlprune.pruning.generation_settings import cache_length
from vlprune.pruning.layer_plan import LayerPlan, plan_layers
from vlprune.pruning.layout import (
    Layout,
    cached_beginning,
    drop_columns,
    join_layouts,
    keep_all,
    layout_of,
    with_cached_ids,
)
from vlprune.pruning.positions import grid_positions
from vlprune.pruning.probe import MergedPrompt, encode_images, merge_images, present_modalities
from vlprune.pruning.prompt_images import PromptImage, locate_images
from vlprune.pruning.question import QuestionFinder
from vlprune.record import Record

#: Inputs that models read number by number, before the tower runs and after it: on the host that takes no waiting.
READ_BY_HOST = ("image_sizes", "batch_num_images")


@dataclass(frozen=True)
class PromptWindow:
    """Some columns of a short prompt: `embeds` (B, s, d), and what the decoder adds at `visual` (B, s) tokens in its
    first layers, `deepstack` with one (B, s, d) per layer; for most models that is nothing, and `visual` is None."""

    embeds: Tensor
    visual: Tensor | None = None
    deepstack: list[Tensor] = field(default_factory=list)

    def cut(self, start: int, stop: int, copies: int) -> "PromptWindow":
        """Its columns from `start` to `stop`, each row `copies` times."""

        def columns(values: Tensor) -> Tensor:
            part = values[:, start:stop]
            return part if copies == 1 else part.repeat_interleave(copies, dim=0)

        visual = None if self.visual is None else columns(self.visual)
        return PromptWindow(columns(self.embeds), visual, [columns(layer) for layer in self.deepstack])

    def followed_by(self, embeds: Tensor) -> "PromptWindow":
        """The same with further embeddings (B, t, d), which are no visual tokens, behind it."""
        more = embeds.shape[1]
        if not more:
            return self
        visual = None if self.visual is None else F.pad(self.visual, (0, more))
        deepstack = [F.pad(layer, (0, 0, 0, more)) for layer in self.deepstack]
        return PromptWindow(torch.cat([self.embeds, embeds], dim=1), visual, deepstack)


@dataclass
class ShortPrompt:
    """A prompt that has lost tokens.

    `layout` says where each of its S columns comes from. `contents` are all of its columns, None where the call brings
    no images and goes on from a cache. `positions` (B, L) are those that the model gave the whole prompt, None where it
    left them to the decoder. `layer_plan` is what the decoder's layers drop. `records` are those of its images, to
    which the layers add what they drop; `question_stopwatch` timed the embedding of the questions.
    """

    layout: Layout
    records: list[Record]
    contents: PromptWindow | None = None
    positions: Tensor | None = None
    layer_plan: LayerPlan | None = None
    question_stopwatch: Stopwatch | None = None

    @property
    def final_layout(self) -> Layout:
        """The layout with the records as they are now, for the cache that holds the prompt."""
        return replace(self.layout, records=tuple(self.records))


@dataclass(frozen=True)
class _Prompt:
    """A prompt as it comes in: ids and mask (B, L), the same on the host, and the layout of its cached beginning."""

    ids: Tensor
    mask: Tensor
    host_ids: Tensor
    host_mask: Tensor
    first: Layout | None

    @property
    def start(self) -> int:
        """The first column that the cache does not hold."""
        return self.first.before if self.first is not None else 0


@dataclass(frozen=True)
class _Chosen:
    """The images of a prompt, merged from column `begin` on, and what was chosen of them."""

    merged: MergedPrompt
    begin: int
    images: list[PromptImage]
    choice: Choice
    question_stopwatch: Stopwatch


class PromptShortener:
    """Shortens the prompts of one model by one method.

    `in_llm` is the method that works between the layers of an LLM of `depth` layers, if there is one.
    """

    def __init__(
        self,
        model: Any,
        family: Family,
        method: Method,
        questions: QuestionFinder,
        positions: str,
        in_llm: InLLMMethod | None,
        depth: int,
    ) -> None:
        self.model, self.family, self.positions = model, family, positions
        self._method, self._questions, self.in_llm, self._depth = method, questions, in_llm, depth
        self._modalities = family.modalities(model)
        self.placeholders = {modality.placeholder for modality in self._modalities}

    def has_images(self, kwargs: dict[str, Any]) -> bool:
        """Whether a call brings images or videos."""
        return bool(present_modalities(self.model, self.family, kwargs, self._modalities))

    def without_images(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """A call's arguments less those that carry images or say how to read them."""
        return {name: value for name, value in kwargs.items() if name not in self.family.vision_inputs}

    def shorten(
        self,
        ids: Tensor,
        mask: Tensor,
        kwargs: dict[str, Any],
        default_positions: Tensor,
        query: str | Sequence[str | None] | None,
        feature_cache: FeatureCache,
    ) -> ShortPrompt:
        """What is left of a call's prompt `ids` (B, L), which may go on from the `past_key_values` of the call.

        `kwargs` are the call's arguments, with its images if it has any. `default_positions` (B, L) are those that the
        model would give the prompt if it had none.
        """
        prompt = _read_prompt(ids, mask, kwargs.get("past_key_values"))
        chosen, records = None, list(prompt.first.records) if prompt.first is not None else []
        if self.has_images(kwargs):
            chosen = self._choose(prompt, kwargs, records, query, feature_cache)
            records += chosen.choice.records
        records.sort(key=lambda record: (record.row, record.image))
        layout = _lay_out(prompt, chosen)
        if self.positions == "grid":
            begin, positions = (chosen.begin, chosen.merged.positions) if chosen is not None else (prompt.start, None)
            given = kwargs.get("position_ids")
            layout = replace(layout, grid=grid_positions(prompt.first, given, positions, begin, default_positions))
        layout = replace(layout, records=tuple(records))
        if chosen is None:
            return ShortPrompt(layout, records)
        return self._fill(prompt, chosen, layout, records)

    def _choose(
        self,
        prompt: _Prompt,
        kwargs: dict[str, Any],
        earlier: list[Record],
        query: str | Sequence[str | None] | None,
        feature_cache: FeatureCache,
    ) -> _Chosen:
        """Merge the call's images, and let the method choose among those behind what a cache holds."""
        start = prompt.start
        rows = [row[keep].tolist() for row, keep in zip(prompt.host_ids, prompt.host_mask)]
        shown = torch.isin(prompt.host_ids[:, start:], torch.tensor(sorted(self.placeholders))).any(dim=1)
        given = self._questions.read_query(len(rows), shown.nonzero()[:, 0].tolist(), query)
        merged, begin = self._merge(prompt, kwargs, feature_cache)  # first: meanwhile the host reads the question
        questions = self._questions.embed(rows, given)
        before = {record.row: record.image + 1 for record in earlier} if begin else {}
        encoded = [
            (modality.placeholder, merged.encoded[modality.kind])
            for modality in self._modalities
            if modality.kind in merged.encoded
        ]
        images = locate_images(prompt.host_ids[:, begin:], encoded, before)
        if start:
            images = [replace(image, columns=image.columns + begin) for image in images]
            images = [image for image in images if int(image.columns[0]) >= start]
        embeds = F.pad(merged.embeds, (0, 0, begin, 0)) if begin else merged.embeds
        choice = choose_tokens(
            self._method,
            images,
            prompt.ids,
            embeds,
            questions.query_for,
            partial(self.family.project, self.model),
            self.family.variable_length,
        )
        return _Chosen(merged, begin, images, choice, questions.stopwatch)

    def _merge(self, prompt: _Prompt, kwargs: dict[str, Any], cache: FeatureCache) -> tuple[MergedPrompt, int]:
        """The prompt's merged embeddings from a column on, and that column: 0, or where a cache ends."""
        inputs = {name: kwargs[name] for name in self.family.vision_inputs if kwargs.get(name) is not None}
        for name in READ_BY_HOST:
            if isinstance(inputs.get(name), Tensor):
                inputs[name] = inputs[name].cpu()
        known, begin, attention = None, 0, self._method.needs_attention
        ids, host = prompt.ids, prompt.host_ids
        if prompt.start:  # the caller may pass all images again, or the new ones alone
            try:
                known = encode_images(self.model, self.family, ids, inputs, cache, attention)
            except ValueError:  # a family that goes by stretches of placeholders has too many of them
                begin = prompt.start
            else:
                tokens = sum(image.shape.length for part in known.values() for image in part.images)
                places = sum(int((host == placeholder).sum()) for placeholder in self.placeholders)
                begin = 0 if tokens == places else prompt.start
        if self.positions == "grid":  # positions depend on where the images lie
            inputs["attention_mask"] = prompt.mask[:, begin:]
            types = kwargs.get("mm_token_type_ids")
            if types is not None:
                inputs["mm_token_type_ids"] = F.pad(types, (ids.shape[1] - types.shape[1], 0))[:, begin:]
        merged = merge_images(self.model, self.family, ids[:, begin:], inputs, cache, known, attention, host[:, begin:])
        return merged, begin

    def _fill(self, prompt: _Prompt, chosen: _Chosen, layout: Layout, records: list[Record]) -> ShortPrompt:
        """The short prompt with all that the model is to see of it."""
        ids, merged, begin = prompt.ids, chosen.merged, chosen.begin
        visual = None
        if merged.deepstack:
            visual = torch.zeros_like(chosen.choice.drop)
            for placeholder in self.placeholders:
                visual |= ids == placeholder
            visual = layout.gather(visual) & (layout.mask != 0)
        deepstack = [layout.gather(F.pad(layer, (0, 0, begin, 0))) for layer in merged.deepstack or []]
        positions = merged.positions if begin == 0 else None
        positions = positions.expand_as(ids) if positions is not None and positions.ndim == 2 else None
        contents = PromptWindow(layout.gather(chosen.choice.embeds), visual, deepstack)
        plan = None
        if self.in_llm is not None and chosen.images:
            held = prompt.first.after if prompt.first is not None else 0
            new = chosen.choice.records
            variable = self.family.variable_length
            plan = plan_layers(self.in_llm, self._depth, chosen.images, new, layout, held, variable)
        return ShortPrompt(layout, records, contents, positions, plan, chosen.question_stopwatch)


def _read_prompt(ids: Tensor, mask: Tensor, cache: Any) -> _Prompt:
    """The prompt with what a KV cache holds of it in front."""
    held, first = cache_length(cache), None
    if held:
        known = layout_of(cache)
        if mask.shape[1] != ids.shape[1]:
            ids = with_cached_ids(ids, mask, known)
        first = cached_beginning(known or keep_all(ids[:, :held], mask[:, :held]), ids, mask, held)
    if mask.shape != ids.shape:
        raise ValueError(f"attention_mask has shape {tuple(mask.shape)}, but input_ids has {tuple(ids.shape)}.")
    return _Prompt(ids, mask, ids.cpu(), mask.cpu().bool(), first)


def _lay_out(prompt: _Prompt, chosen: _Chosen | None) -> Layout:
    """Where the tokens of the short prompt come from."""
    ids, mask, start, first = prompt.ids, prompt.mask, prompt.start, prompt.first
    lost = [0] * len(ids)
    if chosen is None:
        rest = keep_all(ids[:, start:], mask[:, start:])
    else:
        for record in chosen.choice.records:
            lost[record.row] += record.before - record.after + record.structure[0] - record.structure[1]
        drop, order = chosen.choice.drop[:, start:], chosen.choice.order[:, start:] - start
        real = prompt.host_mask[:, start:].sum(dim=1).tolist()
        rest = drop_columns(ids[:, start:], mask[:, start:], drop, order, lost, real)
    layout = rest if first is None else join_layouts(first, rest, ids)
    even = first is None and bool(prompt.host_mask.all()) and len(set(lost)) == 1
    return replace(layout, fillers=layout.fillers and not even)

"""The seam into transformers: `attach` makes a model drop visual tokens in `generate` and in `forward`.

`generate` is wrapped on the instance: it shortens the prompt once, before transformers sees it. A hook before
the model's forward then feeds the kept embeddings in place of the shortened ids, and shortens direct calls of
the model.
"""

import functools
import inspect
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vlprune.features import FeatureCache
from vlprune.methods.base import Method
from vlprune.methods.choose import choose
from vlprune.models.base import Vision, family_of
from vlprune.models.generation import PromptStreamer, cache_length, padding_mask, setting, shift_lengths, token_ids
from vlprune.models.layout import (
    ATTRIBUTE,
    Layout,
    frozen,
    go_on,
    joined,
    shorten,
    shorten_companions,
    whole,
    whole_prompt,
)
from vlprune.models.probe import probe, see
from vlprune.models.units import Unit, find_units
from vlprune.query import Questions, check_query, framed
from vlprune.record import Record

POSITIONS = ("renumbered", "original")


def attach(
    model: Any,
    method: Method,
    *,
    processor: Any = None,
    query: str | Sequence[str | None] | None = None,
    positions: str | None = None,
    dual_encoder: Any = None,
    cache_bytes: int = 256 * 2**20,
) -> "Pruner":
    """Make `model` drop the visual tokens that `method` does not choose, until `detach()` or the end of the `with`.

    `model.generate(...)` and `model(...)` are called as before (a call of `model.forward` itself goes past
    the hooks and is not pruned). `generate` returns the prompt as it was given, then the new tokens;
    `model(...)` returns logits of the shortened sequence, and its loss when there are labels.

    Args:
        model: a model of a supported family (`vlprune.models.list_families()`).
        method: what to keep, such as `Script(keep=64)`.
        processor: the model's processor or tokenizer; needed to find the question's text, and for `ask_many`.
        query: the question, for all rows or one per row (None for rows without images). By default the last user turn.
        positions: "renumbered" closes the gaps that dropped tokens leave, "original" keeps every token's position; the
            default is the family's.
        dual_encoder: a `CLIPModel` or `SiglipModel`, a (model, tokenizer) pair, or an id or path, for relevance in the
            space that text and image share.
        cache_bytes: how much memory the vision features of recent images may take; 0 turns that cache off.

    Example:
        with attach(model, Script(keep=64), processor=processor) as pruner:
            out = model.generate(**inputs)
        pruner.last.kept, pruner.last.scores
    """
    return Pruner(model, method, processor, query, positions, dual_encoder, cache_bytes)


@dataclass
class _Call:
    """One running `generate`: the kept embeddings (None without images) and the caches that already hold them."""

    layout: Layout | None = None
    embeds: Tensor | None = None
    filled: list[Any] = field(default_factory=list)
    thread: int = field(default_factory=threading.get_ident)


class Pruner:
    """A model with pruning attached. `records` are the images of the most recent call, `last` is the last of them.

    `query` may be set between calls. One call at a time: a second thread needs a model of its own.
    """

    def __init__(
        self,
        model: Any,
        method: Method,
        processor: Any,
        query: str | Sequence[str | None] | None,
        positions: str | None,
        dual_encoder: Any,
        cache_bytes: int,
    ) -> None:
        self.family = family_of(model)
        if not isinstance(method, Method):
            raise TypeError(f"method={method!r}: pass a Method such as Script(keep=64), or get_method('script').")
        if hasattr(model.__dict__.get("generate"), "vlprune"):
            raise RuntimeError("model already has a pruner attached: detach it first.")
        check_query(query)
        self.positions = self.family.positions if positions is None else positions
        if self.positions not in POSITIONS:
            raise ValueError(f"positions={positions!r}: choose from {', '.join(map(repr, POSITIONS))}.")
        if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int) or cache_bytes < 0:
            raise ValueError(f"cache_bytes={cache_bytes!r}: pass a number of bytes, 0 to cache nothing.")
        self.model, self.method, self.processor, self.query = model, method, processor, query
        self.records: list[Record] = []
        self._cache = FeatureCache(cache_bytes)
        self._placeholder = self.family.placeholder(model)
        self._questions = Questions(model, method, processor, self._placeholder, dual_encoder)
        self._call: _Call | None = None
        self._made: Layout | None = None
        self._generate_before = model.__dict__.get("generate")
        self._handles = [
            model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            model.register_forward_hook(self._after_forward),
        ]
        model.__dict__["generate"] = self._wrapped(model.generate)

    @property
    def last(self) -> Record:
        """The record of the last image of the most recent call."""
        if not self.records:
            raise LookupError("the most recent call had no images, so there is no record.")
        return self.records[-1]

    def __enter__(self) -> "Pruner":
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def detach(self) -> None:
        """Give the model back as it was, and drop the cached features. The records stay."""
        for handle in self._handles:
            handle.remove()
        if self._handles:
            if self._generate_before is None:
                del self.model.__dict__["generate"]
            else:
                self.model.__dict__["generate"] = self._generate_before
        self._handles = []
        self.clear_cache()

    def clear_cache(self) -> None:
        """Forget the vision features of earlier images."""
        self._cache.clear()

    def ask_many(self, image: Any, questions: Sequence[str], **options: Any) -> list[str]:
        """Ask several questions about one image: the tower sees it once, the tokens are chosen for each question.

        `options` go to `generate`, such as `max_new_tokens=20`. Needs the processor; its chat template frames
        each question. Returns one answer per question.
        """
        inputs = framed(self.processor, image, questions).to(self.model.device)
        query, cache = self.query, self._cache
        self.query = list(questions)
        self._cache = cache if cache.limit > 0 else FeatureCache(float("inf"))
        try:
            first = {"pixel_values": inputs["pixel_values"][:1]}
            with torch.no_grad():
                see(self.model, self.family, inputs["input_ids"][:1], first, self._cache)
            out = self.model.generate(**inputs, **options)
        finally:
            self.query, self._cache = query, cache
        new = out[:, inputs["input_ids"].shape[1] :]
        return [text.strip() for text in self.processor.batch_decode(new, skip_special_tokens=True)]

    # --- generate ---

    def _wrapped(self, original: Callable[..., Any]) -> Callable[..., Any]:
        names = list(inspect.signature(original).parameters)

        @functools.wraps(original)
        def generate(*args: Any, **kwargs: Any) -> Any:
            if self._call is not None:  # the model drafts for itself, inside its own generate
                self._check_thread(self._call)
                return original(*args, **kwargs)
            kwargs.update(zip(names, args))
            inputs = kwargs.pop("inputs", None)
            if inputs is not None:
                kwargs["input_ids"] = inputs
            prompt = kwargs.get("input_ids")
            with torch.no_grad():
                self._call = self._opened(kwargs)
            call = self._call
            try:
                output = original(**kwargs)
            finally:
                self._call = None
            return self._closed(call, prompt, kwargs.get("past_key_values"), output)

        generate.vlprune = self  # type: ignore[attr-defined]
        return generate

    def _opened(self, kwargs: dict[str, Any]) -> _Call:
        """Shorten the prompt in `kwargs`, in place."""
        cache = kwargs.get("past_key_values")
        seen = self.family.has_vision(kwargs)
        self.records = []
        if not seen and (cache_length(cache) == 0 or not hasattr(cache, ATTRIBUTE)):
            return _Call()
        prompt = token_ids(kwargs).to(self.model.device)  # transformers lets prompts stay on the CPU
        mask = kwargs.get("attention_mask")
        mask = padding_mask(self.model, kwargs, prompt) if mask is None else mask.to(prompt.device)
        layout, embeds = self._plan(prompt, mask, kwargs, cache)
        given = kwargs.get("position_ids")
        places = self._position_ids(layout, mask, given, (mask.long().cumsum(1) - 1).clamp(min=0))
        for name in self.family.vision_inputs:
            kwargs.pop(name, None)
        shorten_companions(kwargs, layout, mask, prompt.shape)
        if places is not None:
            kwargs["position_ids"] = places
        kwargs["attention_mask"] = layout.mask
        pad = setting(self.model, kwargs, "pad_token_id")
        filler = pad if isinstance(pad, int) else 0
        short = layout.gather(layout.ids)
        kwargs["input_ids"] = short.masked_fill((layout.mask == 0) & (short == self._placeholder), filler)
        shift_lengths(self.model, kwargs, layout.after - prompt.shape[1])
        if kwargs.get("streamer") is not None:
            kwargs["streamer"] = PromptStreamer(kwargs["streamer"], prompt)
        return _Call(layout, embeds)

    def _closed(self, call: _Call, prompt: Tensor | None, cache: Any, output: Any) -> Any:
        """Put the whole prompt back in front of the new tokens, and note in the cache what it holds."""
        if call.layout is None or prompt is None:
            return output
        for held in (cache, getattr(output, "past_key_values", None)):
            if held is not None:
                setattr(held, ATTRIBUTE, call.layout)
        sequences = output if isinstance(output, Tensor) else output.sequences
        new = sequences[:, call.layout.after :].to(prompt.device)
        front = prompt.repeat_interleave(new.shape[0] // prompt.shape[0], dim=0)
        sequences = torch.cat([front, new], dim=1)
        if isinstance(output, Tensor):
            return sequences
        output.sequences = sequences
        return output

    def _check_thread(self, call: _Call) -> None:
        if call.thread != threading.get_ident():
            raise RuntimeError(
                "this model is generating in another thread: an attached model takes one call at a time."
            )

    # --- forward ---

    def _before_forward(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        call = self._call
        if call is not None:
            if call.embeds is None or any(kwargs.get("past_key_values") is cache for cache in call.filled):
                return None
            return self._fed(call, args, kwargs)
        self._made = None
        if args:
            kwargs = {**dict(zip(inspect.signature(module.forward).parameters, args)), **kwargs}
        if self.family.has_vision(kwargs):
            return (), self._direct(dict(kwargs))
        cache = kwargs.get("past_key_values")
        layout = getattr(cache, ATTRIBUTE, None)
        if layout is not None and cache_length(cache) > 0:
            kwargs = dict(kwargs)
            go_on(kwargs, layout, cache_length(cache), self.positions == "renumbered")
            return (), kwargs
        if cache is None:
            self.records = []
        return None

    def _after_forward(self, module: Any, args: Any, output: Any) -> None:
        if self._made is not None:
            parts = output if isinstance(output, tuple) else [getattr(output, "past_key_values", None)]
            for part in parts:
                if hasattr(part, "get_seq_length"):
                    setattr(part, ATTRIBUTE, self._made)
            self._made = None

    def _fed(self, call: _Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Inside generate: the embeddings of the columns that this forward brings, for every beam of every row."""
        self._check_thread(call)
        assert call.embeds is not None
        ids, cache = kwargs.get("input_ids"), kwargs.get("past_key_values")
        if ids is None:  # not the prompt: guidance also runs the model on one of its own, passed by position
            return None
        start, short = cache_length(cache), call.embeds.shape[1]
        stop = start + ids.shape[1]
        copies = ids.shape[0] // call.embeds.shape[0]
        head = call.embeds[:, start:stop].repeat_interleave(copies, dim=0)
        if cache is not None and stop >= short:
            call.filled.append(cache)
        kwargs = dict(kwargs)
        tail = ids[:, head.shape[1] :]
        if tail.shape[1]:
            head = torch.cat([head, self.model.get_input_embeddings()(tail)], dim=1)
        kwargs["input_ids"], kwargs["inputs_embeds"] = None, head
        if self.positions == "original" and cache is None and kwargs.get("attention_mask") is None:
            kwargs["attention_mask"] = torch.ones_like(ids)  # without a mask, gaps would be read as packed sequences
        return args, kwargs

    def _direct(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        """A direct call of the model with images: shorten it."""
        ids, given, cache = token_ids(kwargs), kwargs.get("attention_mask"), kwargs.get("past_key_values")
        if given is not None and (not isinstance(given, Tensor) or given.ndim != 2):
            raise ValueError("attention_mask must be 2-D (rows, columns) for a prompt that is to be shortened.")
        start, known = cache_length(cache), getattr(cache, ATTRIBUTE, None)
        gone = known.before - known.after if start and known is not None else 0
        mask = ids.new_ones(len(ids), start + gone + ids.shape[1]) if given is None else given
        layout, embeds = self._plan(ids, mask, kwargs, cache)
        assert embeds is not None
        columns = torch.arange(layout.before, device=ids.device).expand(layout.ids.shape)
        places = self._position_ids(layout, mask, kwargs.get("position_ids"), columns)
        for name in self.family.vision_inputs:
            kwargs.pop(name, None)
        shorten_companions(kwargs, layout, mask, ids.shape, start)
        if places is not None:
            kwargs["position_ids"] = places[:, start:]
        if given is not None or layout.fillers or (places is not None and start == 0):
            kwargs["attention_mask"] = layout.mask
        kwargs["input_ids"], kwargs["inputs_embeds"] = None, embeds[:, start:]
        self._made = layout
        return kwargs

    # --- what both share ---

    def _position_ids(self, layout: Layout, mask: Tensor, given: Tensor | None, default: Tensor) -> Tensor | None:
        """(B, S) positions to pass on, or None where the model numbers the shortened prompt itself."""
        if given is None and self.positions == "renumbered":
            return None
        attention = str(self.model.config.get_text_config()._attn_implementation)
        if self.positions == "original" and "flash" in attention:
            raise ValueError(
                f"positions='original' leaves gaps, which {attention} reads as packed sequences: use sdpa."
            )
        places = default if given is None else given.expand(layout.ids.shape[0], -1)
        if places.shape != layout.ids.shape:
            raise ValueError(f"position_ids must have one position per token of the prompt, {tuple(layout.ids.shape)}.")
        return layout.positions(mask, places, renumber=self.positions == "renumbered")

    def _plan(self, ids: Tensor, mask: Tensor, kwargs: dict[str, Any], cache: Any) -> tuple[Layout, Tensor | None]:
        """Where each token of the shortened prompt comes from, and its embeddings (B, S, d) if the call has images."""
        held = cache_length(cache)
        first: Layout | None = None
        if held:
            known = getattr(cache, ATTRIBUTE, None)
            if mask.shape[1] != ids.shape[1]:
                ids = whole_prompt(ids, mask, known)
            first = frozen(known or whole(ids[:, :held], mask[:, :held]), ids, mask, held)
        if mask.shape != ids.shape:
            raise ValueError(f"attention_mask has shape {tuple(mask.shape)}, but input_ids has {tuple(ids.shape)}.")
        start = first.before if first is not None else 0
        records = list(first.records) if first is not None else []
        host, real = ids.cpu(), mask.cpu().bool()
        drop = torch.zeros_like(ids, dtype=torch.bool)
        lost, embeds = [0] * len(host), None
        if self.family.has_vision(kwargs):
            units, visions, embeds = self._seen(ids, host, kwargs, start, records)
            rows = [row[keep].tolist() for row, keep in zip(host, real)]
            ask = self._questions.asker(rows, units, self.query)
            embeds, new = choose(self.method, units, visions, embeds, drop, partial(self.family.grid, self.model), ask)
            for record in new:
                lost[record.row] += record.before - record.after
            records += new
        counts = real[:, start:].sum(dim=1).tolist()
        rest = shorten(ids[:, start:], mask[:, start:], drop[:, start:], lost, counts)
        layout = rest if first is None else joined(first, rest, ids)
        if first is None and bool(real.all()) and len(set(lost)) == 1:
            layout = replace(layout, fillers=False)
        self.records = sorted(records, key=lambda record: (record.row, record.image))
        layout = replace(layout, records=tuple(self.records))
        return layout, layout.gather(embeds) if embeds is not None else None

    def _seen(
        self, ids: Tensor, host: Tensor, kwargs: dict[str, Any], start: int, old: list[Record]
    ) -> tuple[list[Unit], list[Vision], Tensor]:
        """The images from column `start` on, and the prompt's merged embeddings (B, L, d)."""
        inputs = {name: kwargs[name] for name in self.family.vision_inputs if kwargs.get(name) is not None}
        visions, begin = None, 0
        if start:  # the caller may pass all images again, or the new ones alone
            visions = see(self.model, self.family, ids, inputs, self._cache)
            if sum(len(vision.features) for vision in visions) != int((host == self._placeholder).sum()):
                begin = start
        found = probe(self.model, self.family, ids[:, begin:], inputs, self._cache, visions)
        lengths = [len(vision.features) for vision in found.visions]
        before = {record.row: record.image + 1 for record in old} if begin else {}
        units = find_units(host[:, begin:], self._placeholder, lengths, before)
        units = [replace(unit, columns=unit.columns + begin) for unit in units]
        new = [i for i, unit in enumerate(units) if int(unit.columns[0]) >= start]
        return [units[i] for i in new], [found.visions[i] for i in new], F.pad(found.embeds, (0, 0, begin, 0))

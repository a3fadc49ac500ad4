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

from vlprune.cuda_graphs import with_graphs
from vlprune.devices import Stopwatch
from vlprune.methods.base import Method
from vlprune.methods.in_llm import split_stages
from vlprune.models.base import family_of
from vlprune.pruning.choose import choose
from vlprune.pruning.feature_cache import FeatureCache
from vlprune.pruning.generation_settings import (
    PromptStreamer,
    cache_length,
    padding_mask,
    setting,
    shift_lengths,
    token_ids,
)
from vlprune.pruning.layer_cuts import Stages
from vlprune.pruning.layer_plan import Group, Plan, make_plan, with_stages
from vlprune.pruning.layout import (
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
from vlprune.pruning.probe import Probe, encode_images, present_streams, probe
from vlprune.pruning.prompt_images import Unit, find_units
from vlprune.pruning.question import Questions, check_query, framed
from vlprune.record import Record

#: Inputs that models read number by number, before the tower runs and after it: on the host that takes no waiting.
READ_BY_HOST = ("image_sizes", "batch_num_images")


def attach(
    model: Any,
    method: Method,
    *,
    processor: Any = None,
    query: str | Sequence[str | None] | None = None,
    positions: str | None = None,
    dual_encoder: Any = None,
    cache_bytes: int = 256 * 2**20,
    feature_cache: FeatureCache | None = None,
    cuda_graphs: bool | str = False,
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
        positions: "renumbered" closes the gaps that dropped tokens leave, "original" keeps every token's position,
            "grid" keeps the positions in time, height and width of models that have such; the default is the family's.
        dual_encoder: a `CLIPModel` or `SiglipModel`, a (model, tokenizer) pair, or an id or path, for relevance in the
            space that text and image share.
        cache_bytes: how much memory the vision features of recent images may take; 0 turns that cache off.
        feature_cache: in place of one of its own, a cache that several pruners share; `detach` does not empty it.
        cuda_graphs: True runs the LLM of `generate` as CUDA graphs, "compile" compiles its layers first.

    Example:
        with attach(model, Script(keep=64), processor=processor) as pruner:
            out = model.generate(**inputs)
        pruner.last.kept, pruner.last.scores
    """
    return Pruner(model, method, processor, query, positions, dual_encoder, cache_bytes, feature_cache, cuda_graphs)


@dataclass
class _Prompt:
    """A shortened prompt: its embeddings (B, S, d), and what the decoder adds at `visual` (B, S) tokens in its first
    layers, `deep` with one (B, S, d) per layer; for most models that is nothing, and `visual` is None. `places` (B, L)
    are the positions that the model gave the whole prompt, None where it left them to the decoder. `plan` is what the
    decoder's layers drop."""

    embeds: Tensor
    visual: Tensor | None
    deep: list[Tensor]
    places: Tensor | None = None
    plan: Plan | None = None

    def window(self, start: int, stop: int, copies: int) -> "_Prompt":
        """Its columns from `start` to `stop`, each row `copies` times."""

        def cut(values: Tensor) -> Tensor:
            part = values[:, start:stop]
            return part if copies == 1 else part.repeat_interleave(copies, dim=0)

        visual = None if self.visual is None else cut(self.visual)
        return _Prompt(cut(self.embeds), visual, [cut(layer) for layer in self.deep], plan=self.plan)


@dataclass
class _Call:
    """One running `generate`: the kept prompt (None without images) and the caches that already hold it."""

    layout: Layout | None = None
    prompt: _Prompt | None = None
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
        feature_cache: FeatureCache | None,
        cuda_graphs: bool | str,
    ) -> None:
        self.family = family_of(model)
        if not isinstance(method, Method):
            raise TypeError(f"method={method!r}: pass a Method such as Script(keep=64), or get_method('script').")
        if hasattr(model.__dict__.get("generate"), "vlprune"):
            raise RuntimeError("model already has a pruner attached: detach it first.")
        check_query(query)
        self.positions = self.family.positions[0] if positions is None else positions
        if self.positions not in self.family.positions:
            allowed = ", ".join(map(repr, self.family.positions))
            raise ValueError(f"positions={positions!r}: choose from {allowed} for family {self.family.name!r}.")
        if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int) or cache_bytes < 0:
            raise ValueError(f"cache_bytes={cache_bytes!r}: pass a number of bytes, 0 to cache nothing.")
        self.model, self.method, self.processor, self.query = model, method, processor, query
        self.records: list[Record] = []
        self.feature_cache = FeatureCache(cache_bytes) if feature_cache is None else feature_cache
        self._owns_cache = feature_cache is None
        self._streams = self.family.streams(model)
        self.placeholders = {stream.placeholder for stream in self._streams}
        if dual_encoder is not None and not self.family.has_dual_encoder:
            raise ValueError(f"dual_encoder: the tower of family {self.family.name!r} has no text twin; leave it out.")
        self._first, inside = split_stages(method)
        self._questions = Questions(model, self._first, processor, self.placeholders, dual_encoder)
        self._reading: Stopwatch | None = None
        self._call: _Call | None = None
        self._made: Layout | None = None
        self._deep: _Prompt | None = None
        self._stages: Stages | None = None
        if inside is not None:
            renumber = (self.positions if positions is not None else inside.positions) == "renumbered"
            self._stages = Stages(model, inside, renumber and "grid" not in self.family.positions, self._cut)
        self.cuda_graphs = with_graphs(model, cuda_graphs)  # first: what we hand to generate is what the graphs are for
        self._generate_before = model.__dict__.get("generate")
        self._handles = [
            model.register_forward_pre_hook(self._before_forward, with_kwargs=True),
            model.register_forward_hook(self._after_forward),
            model.get_decoder().register_forward_pre_hook(self._before_decoder, with_kwargs=True),
            *(self._stages.hooks() if self._stages is not None else []),
        ]
        model.__dict__["generate"] = self._wrapped(model.generate)

    @property
    def question_seconds(self) -> float:
        """Seconds that the latest call with images spent on embedding questions, and its tokens in the same space."""
        return self._reading.seconds if self._reading is not None else 0.0

    @property
    def first_cut(self) -> int | None:
        """The first layer of the LLM that sees fewer tokens than entered it; None where all layers see the same."""
        return None if self._stages is None else self._stages.cuts[0]

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
        if self.cuda_graphs is not None:
            self.cuda_graphs.close()
        if self._owns_cache:
            self.clear_cache()

    def clear_cache(self) -> None:
        """Forget the vision features of earlier images."""
        self.feature_cache.clear()

    def ask_many(self, image: Any, questions: Sequence[str], **options: Any) -> list[str]:
        """Ask several questions about one image: the tower sees it once, the tokens are chosen for each question.

        `options` go to `generate`, such as `max_new_tokens=20`. Needs the processor; its chat template frames
        each question. Returns one answer per question.
        """
        inputs = framed(self.processor, image, questions)
        query, cache = self.query, self.feature_cache
        self.feature_cache = cache if cache.limit > 0 else FeatureCache(float("inf"))
        try:
            if all(
                self.family.encodes_independently(stream, inputs)
                for stream in present_streams(self.model, self.family, inputs)
            ):
                wanted = self._first.needs_attention
                first = {"pixel_values": inputs["pixel_values"][:1].to(self.model.device)}
                ids = inputs["input_ids"][:1].to(self.model.device)
                with torch.no_grad():
                    encode_images(self.model, self.family, ids, first, self.feature_cache, wanted)
                return self._answers(inputs, questions, options)
            alone = [framed(self.processor, image, [question]) for question in questions]
            return [self._answers(one, [question], options)[0] for one, question in zip(alone, questions)]
        finally:
            self.query, self.feature_cache = query, cache

    def _answers(self, inputs: Any, questions: Sequence[str], options: dict[str, Any]) -> list[str]:
        self.query = list(questions)
        out = self.model.generate(**inputs.to(self.model.device), **options)
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
        seen = self._has_vision(kwargs)
        self.records = []
        if self._stages is not None:  # the hooks on the layers are no code to compile
            kwargs["disable_compile"] = True
        if not seen and (cache_length(cache) == 0 or not hasattr(cache, ATTRIBUTE)):
            return _Call()
        prompt = token_ids(kwargs).to(self.model.device)  # transformers lets prompts stay on the CPU
        mask = kwargs.get("attention_mask")
        mask = padding_mask(self.model, kwargs, prompt) if mask is None else mask.to(prompt.device)
        counted = (mask.long().cumsum(1) - 1).clamp(min=0)
        layout, short_prompt = self._plan(prompt, mask, kwargs, cache, counted)
        places = self._position_ids(layout, mask, kwargs.get("position_ids"), counted)
        for name in self.family.vision_inputs:
            kwargs.pop(name, None)
        shorten_companions(kwargs, layout, mask, prompt.shape)
        if places is not None:
            kwargs["position_ids"] = places
        kwargs["attention_mask"] = layout.mask
        pad = setting(self.model, kwargs, "pad_token_id")
        filler = pad if isinstance(pad, int) else 0
        short = layout.gather(layout.ids)
        for placeholder in self.placeholders if layout.fillers else ():
            short = short.masked_fill((layout.mask == 0) & (short == placeholder), filler)
        kwargs["input_ids"] = short
        shift_lengths(self.model, kwargs, layout.after - prompt.shape[1])
        if kwargs.get("streamer") is not None:
            kwargs["streamer"] = PromptStreamer(kwargs["streamer"], prompt)
        return _Call(layout, short_prompt)

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
        if self._stages is not None:
            self._stages.plan = None  # of a call that failed on its way to the decoder
        if call is not None:
            if call.prompt is None or any(kwargs.get("past_key_values") is cache for cache in call.filled):
                return None
            return self._fed(call, args, kwargs)
        self._made = None
        if args:
            kwargs = {**dict(zip(inspect.signature(module.forward).parameters, args)), **kwargs}
        if self._has_vision(kwargs):
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
        assert call.prompt is not None
        ids, cache = kwargs.get("input_ids"), kwargs.get("past_key_values")
        if ids is None:  # not the prompt: guidance also runs the model on one of its own, passed by position
            return None
        rows, short = call.prompt.embeds.shape[:2]
        start = cache_length(cache)
        stop = start + ids.shape[1]
        part = call.prompt.window(start, stop, ids.shape[0] // rows)
        if cache is not None and stop >= short:
            call.filled.append(cache)
        kwargs = dict(kwargs)
        tail = ids[:, part.embeds.shape[1] :]
        if tail.shape[1]:
            part.embeds = torch.cat([part.embeds, self.model.get_input_embeddings()(tail)], dim=1)
            if part.visual is not None:
                part.visual = F.pad(part.visual, (0, tail.shape[1]))
            part.deep = [F.pad(layer, (0, 0, 0, tail.shape[1])) for layer in part.deep]
        kwargs["input_ids"], kwargs["inputs_embeds"] = None, part.embeds
        self._hand_over(part)
        even = call.layout is not None and not call.layout.fillers
        if even and self.positions == "renumbered" and cache is not None and start == 0 and not self._flash:
            kwargs["attention_mask"] = None  # all ones, and to find that out the model would wait for the device
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
        columns = torch.arange(mask.shape[1], device=ids.device).expand(len(ids), -1)
        layout, prompt = self._plan(ids, mask, kwargs, cache, columns)
        assert prompt is not None
        columns = columns if prompt.places is None else prompt.places
        places = self._position_ids(layout, mask, kwargs.get("position_ids"), columns)
        for name in self.family.vision_inputs:
            kwargs.pop(name, None)
        shorten_companions(kwargs, layout, mask, ids.shape, start)
        if places is not None:
            kwargs["position_ids"] = places[..., start:]
        if given is not None or layout.fillers or (places is not None and start == 0):
            kwargs["attention_mask"] = layout.mask
        part = prompt.window(start, layout.after, 1)
        kwargs["input_ids"], kwargs["inputs_embeds"] = None, part.embeds
        if part.plan is not None and kwargs.get("labels") is not None:
            kwargs["labels"] = kwargs["labels"].clone()  # what the layers drop is no target
        self._hand_over(part, kwargs.get("labels"))
        self._made = layout
        return kwargs

    def _hand_over(self, part: _Prompt, labels: Tensor | None = None) -> None:
        """What the decoder needs to know of the prompt beside its embeddings."""
        self._deep = part if part.deep else None
        if self._stages is not None:
            self._stages.plan, self._stages.labels = part.plan, labels

    def _before_decoder(self, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Give the decoder what the model's own forward would have given it for its visual tokens, had it seen them."""
        part, self._deep = self._deep, None
        cutting = self._stages is not None and self._stages.open(kwargs, part.deep if part is not None else [])
        if part is None or part.visual is None or cutting:
            return None
        deep = [layer[part.visual] for layer in part.deep]
        return args, {**kwargs, "visual_pos_masks": part.visual, "deepstack_visual_embeds": deep}

    def _cut(self, groups: list[Group]) -> None:
        """The decoder has dropped tokens: say so in the records."""
        assert self._stages is not None
        self.records = with_stages(self.records, groups, self._stages.cuts, len(self._stages.layers))
        if self._call is not None and self._call.layout is not None:
            self._call.layout = replace(self._call.layout, records=tuple(self.records))
        elif self._made is not None:
            self._made = replace(self._made, records=tuple(self.records))

    # --- what both share ---

    @property
    def _flash(self) -> bool:
        """Whether attention is flash attention, which needs the mask to know where a static cache ends."""
        return "flash" in str(self.model.config.get_text_config()._attn_implementation)

    def _has_vision(self, kwargs: dict[str, Any]) -> bool:
        return bool(present_streams(self.model, self.family, kwargs, self._streams))

    def _position_ids(self, layout: Layout, mask: Tensor, given: Tensor | None, default: Tensor) -> Tensor | None:
        """(B, S) positions to pass on, (4, B, S) on a grid, or None where the model numbers the short prompt itself."""
        if self.positions == "grid":
            return layout.on_grid()
        if given is None and self.positions == "renumbered":
            return None
        if self.positions == "original" and self._flash:
            attention = self.model.config.get_text_config()._attn_implementation
            raise ValueError(
                f"positions='original' leaves gaps, which {attention} reads as packed sequences: use sdpa."
            )
        places = default if given is None else given.expand(layout.ids.shape[0], -1)
        if places.shape != layout.ids.shape:
            raise ValueError(f"position_ids must have one position per token of the prompt, {tuple(layout.ids.shape)}.")
        return layout.positions(mask, places, renumber=self.positions == "renumbered")

    def _plan(
        self, ids: Tensor, mask: Tensor, kwargs: dict[str, Any], cache: Any, default: Tensor
    ) -> tuple[Layout, _Prompt | None]:
        """Where each token of the shortened prompt comes from, and the prompt itself if the call has images.

        `default` (B, L) are the positions that the model would give the prompt if it had no images.
        """
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
        order = torch.arange(ids.shape[1], device=ids.device).repeat(len(ids), 1)
        lost, found, begin = [0] * len(host), None, start
        units: list[Unit] = []
        new: list[Record] = []
        if self._has_vision(kwargs):
            rows = [row[keep].tolist() for row, keep in zip(host, real)]
            shown = torch.isin(host[:, start:], torch.tensor(sorted(self.placeholders))).any(dim=1)
            ask = self._questions.asker(rows, shown.nonzero()[:, 0].tolist(), self.query)
            self._reading = ask.reading
            found, begin = self._seen(ids, mask, host, kwargs, start)
            before = {record.row: record.image + 1 for record in records} if begin else {}
            encoded = [
                (stream.placeholder, found.found[stream.kind]) for stream in self._streams if stream.kind in found.found
            ]
            units = find_units(host[:, begin:], encoded, before)
            if start:
                units = [replace(unit, columns=unit.columns + begin) for unit in units]
                units = [unit for unit in units if int(unit.columns[0]) >= start]
            embeds = F.pad(found.embeds, (0, 0, begin, 0)) if begin else found.embeds
            project = partial(self.family.project, self.model)
            embeds, new = choose(self._first, units, embeds, drop, order, ask, project, self.family.variable_length)
            found = replace(found, embeds=embeds)
            for record in new:
                gone = record.before - record.after + record.structure[0] - record.structure[1]
                lost[record.row] += gone
            records += new
        counts = real[:, start:].sum(dim=1).tolist()
        rest = shorten(ids[:, start:], mask[:, start:], drop[:, start:], order[:, start:] - start, lost, counts)
        layout = rest if first is None else joined(first, rest, ids)
        self.records = sorted(records, key=lambda record: (record.row, record.image))
        grid = None
        if self.positions == "grid":
            grid = self._grid(first, kwargs.get("position_ids"), found, begin, default)
        even = first is None and bool(real.all()) and len(set(lost)) == 1
        layout = replace(layout, fillers=layout.fillers and not even, records=tuple(self.records), grid=grid)
        if found is None:
            return layout, None
        visual = None
        if found.deep:
            visual = torch.zeros_like(drop)
            for placeholder in self.placeholders:
                visual |= ids == placeholder
            visual = layout.gather(visual) & (layout.mask != 0)
        deep = [layout.gather(F.pad(layer, (0, 0, begin, 0))) for layer in found.deep or []]
        places = found.positions if begin == 0 else None
        places = places.expand_as(ids) if places is not None and places.ndim == 2 else None
        prompt = _Prompt(layout.gather(found.embeds), visual, deep, places)
        if self._stages is not None and units:
            held, depth = first.after if first is not None else 0, len(self._stages.layers)
            prompt.plan = make_plan(self._stages.method, depth, units, new, layout, held, self.family.variable_length)
        return layout, prompt

    def _grid(
        self, first: Layout | None, given: Tensor | None, found: Probe | None, begin: int, default: Tensor
    ) -> Tensor:
        """(3, B, L) the whole prompt's positions in time, height and width, as the plain model would have them."""
        if given is not None:
            raise ValueError("position_ids cannot be passed: they are made from the prompt and its images.")
        new = found.positions if found is not None else None
        if new is None:
            new = default[:, begin:] - default[:, begin : begin + 1]
        new = new.expand(3, -1, -1) if new.ndim == 2 else new[-3:]
        if first is None or begin == 0:
            return new
        assert first.grid is not None
        return torch.cat([first.grid, first.next_on_grid() + new], dim=2)

    def _seen(self, ids: Tensor, mask: Tensor, host: Tensor, kwargs: dict[str, Any], start: int) -> tuple[Probe, int]:
        """The prompt's merged embeddings from a column on, and that column: 0, or `start`, where a cache ends."""
        inputs = {name: kwargs[name] for name in self.family.vision_inputs if kwargs.get(name) is not None}
        for name in READ_BY_HOST:
            if isinstance(inputs.get(name), Tensor):
                inputs[name] = inputs[name].cpu()
        known, begin, wanted = None, 0, self._first.needs_attention
        if start:  # the caller may pass all images again, or the new ones alone
            try:
                known = encode_images(self.model, self.family, ids, inputs, self.feature_cache, wanted)
            except ValueError:  # a family that goes by stretches of placeholders has too many of them
                begin = start
            else:
                tokens = sum(vision.shape.length for part in known.values() for vision in part.visions)
                places = sum(int((host == placeholder).sum()) for placeholder in self.placeholders)
                begin = 0 if tokens == places else start
        if self.positions == "grid":  # positions depend on where the images lie
            inputs["attention_mask"] = mask[:, begin:]
            types = kwargs.get("mm_token_type_ids")
            if types is not None:
                inputs["mm_token_type_ids"] = F.pad(types, (ids.shape[1] - types.shape[1], 0))[:, begin:]
        ids, host = ids[:, begin:], host[:, begin:]
        return probe(self.model, self.family, ids, inputs, self.feature_cache, known, wanted, host), begin

"""`attach`: make a model drop visual tokens in `generate` and in `forward`.

`generate` is wrapped on the instance: it shortens the prompt once, before transformers sees it (`pruning.generate`). A
hook before the model's forward then feeds the kept embeddings in place of the shortened ids, and shortens direct calls
of the model (`pruning.forward`). Both ask `pruning.shorten` what is left of a prompt.
"""

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch

from vlprune.cuda_graphs import use_cuda_graphs
from vlprune.cuda_graphs.graphed_towers import tell_towers
from vlprune.cuda_graphs.text_tower import TextTowerGraphs
from vlprune.devices import input_device
from vlprune.media.image import to_image
from vlprune.methods.base import Method
from vlprune.methods.in_llm import split_stages
from vlprune.models import family_of
from vlprune.pruning.call_state import CallState
from vlprune.pruning.chat_template import chat_inputs, check_processor
from vlprune.pruning.feature_cache import FeatureCache
from vlprune.pruning.forward import ForwardHooks
from vlprune.pruning.generate import has_pruner, wrap_generate
from vlprune.pruning.layer_cuts import LayerCuts
from vlprune.pruning.patched_attributes import Patches
from vlprune.pruning.probe import encode_images, present_modalities
from vlprune.pruning.question import QuestionFinder, check_query, warn_of_llm_relevance
from vlprune.pruning.shorten import PromptShortener
from vlprune.pruning.unpruned import UnprunedCalls
from vlprune.pruning.wrappers import calls_with_hooks, unwrap, without_stale_graphs
from vlprune.record import Record


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
    cuda_graphs: bool | str = "towers",
) -> "Pruner":
    """Make `model` drop the visual tokens that `method` does not choose, until `detach()` or the end of the `with`.

    `model.generate(...)` and `model(...)` are called as before (a call of `model.forward` itself goes past
    the hooks and is not pruned, which a warning says once). `generate` returns the prompt as it was given,
    then the new tokens; `model(...)` returns logits of the shortened sequence, and its loss when there are labels.

    Args:
        model: a model of a supported family (`vlprune.models.list_families()`), or one inside PEFT's
            adapters, `torch.compile` or DistributedDataParallel.
        method: what to keep, such as `Script(keep=64)`.
        processor: the model's processor or tokenizer; needed to find the question's text, and for `ask_many`.
        query: the question, for all rows or one per row (None for rows without images). By default the last user
            turn. Hints on the answer's format ("Answer with a single word or phrase.") are left out of either.
        positions: "renumbered" closes the gaps that dropped tokens leave, "original" keeps every token's position,
            "grid" keeps the positions in time, height and width of models that have such; the default is the family's.
        dual_encoder: a `CLIPModel` or `SiglipModel`, a (model, tokenizer) pair, or an id or path, for relevance in the
            space that text and image share. "auto" is the one that the model's vision tower comes from, where that is
            known. Of an id, a path and "auto" only the text half is loaded.
        cache_bytes: how much memory the vision features of recent images may take; 0 turns that cache off.
        feature_cache: in place of one of its own, a cache that several pruners share; `detach` does not empty it.
        cuda_graphs: what of the model runs as CUDA graphs on a GPU: "towers", its vision tower; True, the LLM of
            `generate` too; "compile" compiles its layers first. False: nothing. Choosing tokens always does, and so
            does the text tower of a dual encoder.

    Example:
        with attach(model, Script(keep=64), processor=processor) as pruner:
            out = model.generate(**inputs)
        pruner.last.kept, pruner.last.scores
    """
    return Pruner(model, method, processor, query, positions, dual_encoder, cache_bytes, feature_cache, cuda_graphs)


class Pruner:
    """A model with pruning attached. `records` are the images of the most recent call, `last` is the last of them.

    `query` may be set between calls. Calls of several threads wait for each other; `records` are those of whichever
    call ended last.
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
        wrapper, model = model, unwrap(model)
        self.model, self.method, self.processor, self.family = model, method, processor, family_of(model)
        if not isinstance(method, Method):
            raise TypeError(f"method={method!r}: pass a Method such as Script(keep=64), or get_method('script').")
        if has_pruner(model):
            raise RuntimeError("model already has a pruner attached: detach it first.")
        check_query(query)
        check_processor(processor)
        self.positions = self._checked_positions(positions)
        if isinstance(cache_bytes, bool) or not isinstance(cache_bytes, int) or cache_bytes < 0:
            raise ValueError(f"cache_bytes={cache_bytes!r}: pass a number of bytes, 0 to cache nothing.")
        if dual_encoder is not None and not self.family.has_dual_encoder:
            raise ValueError(f"dual_encoder: the tower of family {self.family.name!r} is of none; leave it out.")
        self._owns_cache = feature_cache is None
        self._state = CallState(FeatureCache(cache_bytes) if feature_cache is None else feature_cache, query)
        self._before_llm, in_llm = split_stages(method)
        self._layer_cuts: LayerCuts | None = None
        placeholders = {modality.placeholder for modality in self.family.modalities(model)}
        questions = QuestionFinder(model, self._before_llm, processor, placeholders, dual_encoder)
        warn_of_llm_relevance(self._before_llm, dual_encoder, self.family.has_dual_encoder, stacklevel=3)
        if in_llm is not None:
            renumber = (self.positions if positions is not None else in_llm.positions) == "renumbered"
            self._layer_cuts = LayerCuts(model, in_llm, renumber and "grid" not in self.family.positions)
        depth = 0 if self._layer_cuts is None else len(self._layer_cuts.layers)
        self._shortener = PromptShortener(
            model, self.family, self._before_llm, questions, self.positions, in_llm, depth
        )
        self._handles: list[Any] = []
        self._cleanup = ExitStack()
        self._generate_before = model.__dict__.get("generate")
        self._text_tower = TextTowerGraphs(model)
        questions.embed_by(self._text_tower)
        self.cuda_graphs: Any = None
        try:
            self.cuda_graphs = use_cuda_graphs(model, cuda_graphs)  # first: graphs are for what we hand to generate
            if self.cuda_graphs is None:
                self._tell_towers()
            self._put_in_place(wrapper)
        except BaseException:
            self.detach()
            raise

    def _tell_towers(self) -> None:
        patches = Patches()
        self._cleanup.callback(patches.undo)  # first: Ctrl-C may come at any step
        tell_towers(self.model, patches)

    def _put_in_place(self, wrapper: Any) -> None:
        """Put the hooks on the model, and our `generate` in front of its own."""
        model, shortener, state = self.model, self._shortener, self._state
        unpruned = UnprunedCalls(shortener, state)
        ForwardHooks(shortener, self._layer_cuts, state, unpruned).register(self._handles)
        self._cleanup.enter_context(calls_with_hooks(wrapper))
        self._cleanup.enter_context(without_stale_graphs(wrapper))
        read_ahead = getattr(self.cuda_graphs, "read_ahead", None)  # of the LLM's graphs
        model.__dict__["generate"] = wrap_generate(model.generate, shortener, state, unpruned, read_ahead)

    def _checked_positions(self, positions: str | None) -> str:
        found = self.family.positions[0] if positions is None else positions
        if found not in self.family.positions:
            allowed = ", ".join(map(repr, self.family.positions))
            raise ValueError(f"positions={positions!r}: choose from {allowed} for family {self.family.name!r}.")
        return found

    # --- what the most recent call did ---

    @property
    def records(self) -> list[Record]:
        """One record per image or video of the most recent call."""
        return self._state.latest.records if self._state.latest is not None else []

    @property
    def last(self) -> Record:
        """The record of the last image of the most recent call."""
        if not self._state.called:
            raise LookupError("no call yet, so there is no record: call model.generate(...) or model(...) first.")
        if not self.records:
            raise LookupError("the most recent call had no images, so there is no record.")
        return self.records[-1]

    @property
    def question_seconds(self) -> float:
        """Seconds that the latest call with images spent on embedding questions, and its tokens in the same space."""
        watch = self._state.latest.question_stopwatch if self._state.latest is not None else None
        return watch.seconds if watch is not None else 0.0

    # --- settings that may be changed between calls ---

    @property
    def query(self) -> str | Sequence[str | None] | None:
        """The question, as in `attach`."""
        return self._state.query

    @query.setter
    def query(self, query: str | Sequence[str | None] | None) -> None:
        check_query(query)
        self._state.query = query

    @property
    def feature_cache(self) -> FeatureCache:
        """The vision features of recent images."""
        return self._state.feature_cache

    def clear_cache(self) -> None:
        """Forget the vision features of earlier images."""
        self.feature_cache.clear()

    # --- facts about the model ---

    @property
    def placeholders(self) -> set[int]:
        """The token ids that stand for visual tokens in `input_ids`."""
        return self._shortener.placeholders

    @property
    def first_cut(self) -> int | None:
        """The first layer of the LLM that sees fewer tokens than entered it; None where all layers see the same."""
        return None if self._layer_cuts is None else self._layer_cuts.layers_cut_before[0]

    # --- the end ---

    def __enter__(self) -> "Pruner":
        return self

    def __exit__(self, *error: object) -> None:
        self.detach()

    def detach(self) -> None:
        """Give the model back as it was, and drop the cached features. The records stay."""
        self._state.unlock_forward()  # of a forward that Ctrl-C ended
        with self._state.lock:
            self._state.detached = True
            for handle in self._handles:
                handle.remove()
            if self._handles and has_pruner(self.model):
                self.model.__dict__.pop("generate")
                if self._generate_before is not None:
                    self.model.__dict__["generate"] = self._generate_before
            self._handles = []
            self._cleanup.close()
        if self.cuda_graphs is not None:
            self.cuda_graphs.close()
        self._text_tower.clear()
        if self._owns_cache:
            self.clear_cache()

    # --- without the LLM ---

    def select(self, inputs: Any) -> list[Record]:
        """Choose among the images of a prompt without running the LLM; returns one record per image.

        `inputs` are what `generate` takes, from the processor: input_ids (B, L), pixels, and so on. A method inside
        the LLM chooses between its layers, so that it raises `ValueError` here.

        >>> from vlprune import Script, attach, pocket
        >>> model, processor, clip = pocket.load()
        >>> image = torch.zeros(3, 192, 192, dtype=torch.uint8)
        >>> inputs = processor(images=image, text="USER: <image> is there a red star? ASSISTANT:", return_tensors="pt")
        >>> with attach(model, Script(keep=64), processor=processor, dual_encoder=clip) as pruner:
        ...     len(pruner.select(inputs)[0].kept)
        64
        """
        if self._layer_cuts is not None:
            raise ValueError(f"{self.method.name} chooses inside the LLM, which select does not run: call generate.")
        with self._state.own_call(), torch.no_grad():
            self._state.start_call()
            if self._shortener.has_images(inputs):
                ids = inputs["input_ids"].to(input_device(self.model))
                mask = inputs.get("attention_mask")
                mask = torch.ones_like(ids) if mask is None else mask.to(ids.device)
                positions = (mask.long().cumsum(1) - 1).clamp(min=0)
                arguments = dict(inputs), positions, self.query, self.feature_cache
                self._state.latest = self._shortener.shorten(ids, mask, *arguments)
            return self.records

    # --- many questions ---

    def ask_many(self, image: Any, questions: Sequence[str], **options: Any) -> list[str]:
        """Ask several questions about one image: the tower sees it once, the tokens are chosen for each question.

        `image` is what the processor takes, or the path of a file.
        `options` go to `generate`, such as `max_new_tokens=20`. Needs the processor; its chat template frames
        each question. Returns one answer per question.
        """
        image = to_image(image)
        inputs = chat_inputs(self.processor, image, questions)
        modalities = present_modalities(self.model, self.family, inputs)
        with self._state.own_call():
            query, cache = self.query, self.feature_cache
            if cache.limit <= 0:
                self._state.feature_cache = FeatureCache(float("inf"))
            try:
                if all(self.family.encodes_independently(modality, inputs) for modality in modalities):
                    self._encode_first(inputs)
                    return self._answers(inputs, questions, options)
                alone = [chat_inputs(self.processor, image, [question]) for question in questions]
                return [self._answers(one, [question], options)[0] for one, question in zip(alone, questions)]
            finally:
                self.query, self._state.feature_cache = query, cache

    def _encode_first(self, inputs: Any) -> None:
        """Put the features of the first row's image into the cache; the other rows show the same one."""
        pixels = {"pixel_values": inputs["pixel_values"][:1].to(input_device(self.model))}
        ids = inputs["input_ids"][:1].to(input_device(self.model))
        attention = self._before_llm.needs_attention
        with torch.no_grad():
            encode_images(self.model, self.family, ids, pixels, self.feature_cache, attention)

    def _answers(self, inputs: Any, questions: Sequence[str], options: dict[str, Any]) -> list[str]:
        self.query = list(questions)
        out = self.model.generate(**inputs.to(input_device(self.model)), **options)
        new = out[:, inputs["input_ids"].shape[1] :]
        return [text.strip() for text in self.processor.batch_decode(new, skip_special_tokens=True)]

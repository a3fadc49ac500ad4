"""All methods side by side: on one image and question, and by what they need and do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from vlprune.errors import UserError
from vlprune.evaluation import one_question as asking
from vlprune.evaluation.load_model import Loaded, one_sentence, say_looking

if TYPE_CHECKING:
    from vlprune.measure import Run
    from vlprune.methods import Accounting, Method
    from vlprune.pruning.feature_cache import FeatureCache
    from vlprune.record import Record

ALL = "all tokens"


@dataclass(frozen=True)
class Way:
    """One way of answering: with all tokens, or by a method. Where it cannot run, `reason` says why; `run` is None."""

    name: str
    answer: str = ""
    run: Run | None = None
    records: list[Record] = field(default_factory=list)
    reason: str | None = None

    @property
    def accounting(self) -> Accounting:
        """The visual tokens that entered the LLM, and how many a layer saw on average."""
        from vlprune.methods import Accounting

        if self.records:
            return asking.accounted(self.records)
        visual = self.run.visual_tokens if self.run is not None else 0
        return Accounting(visual, float(visual))

    @property
    def title(self) -> str:
        """Two lines: the name, then how many tokens are left in the end, and the answer."""
        entering, left = self.accounting.entering, self.record.after if self.records else self.accounting.entering
        count = f"{entering:,}" if left == entering else f"{entering:,} to {left:,}"
        return f"{self.name}\n{count} tokens → {shorten(self.answer, 24, placeholder=' ...') or '(nothing)'}"

    @property
    def record(self) -> Record:
        return asking.together(self.records)

    @property
    def staged(self) -> bool:
        """Whether tokens were dropped between the LLM's layers."""
        return any(getattr(record, "stages", ()) for record in self.records)

    def facts(self) -> dict[str, Any]:
        """The same, for JSON; the seconds are without the vision tower's."""
        if self.run is None:
            return {"reason": self.reason}
        latency = replace(self.run.latency, vision=0.0)
        seconds = {name: value for name, value in asdict(latency).items() if name != "vision"}
        told = {"answer": self.answer, **self.accounting._asdict(), "kv_bytes": self.run.kv_bytes}
        told["seconds"] = {**seconds, "total": latency.total}
        return {**told, "tokens": asking.chosen(self.record)} if self.records else told


def compare(
    loaded: Loaded,
    methods: Sequence[Method],
    inputs: dict[str, Any],
    question: str,
    *,
    tick: Callable[[str], None] = lambda name: None,
    **options: Any,
) -> list[Way]:
    """The answer with all tokens, then by each method; `options` go to `measure_generate`.

    The plain model runs the vision tower for itself, all methods together once more. `tick(name)` is called before
    each. Raises `UserError` where none of the methods can run.
    """
    import torch

    from vlprune.errors import UnsupportedModel
    from vlprune.measure import measure_generate
    from vlprune.models.base import family_of
    from vlprune.pruning.feature_cache import FeatureCache
    from vlprune.pruning.probe import encode_images

    try:
        family = family_of(loaded.model)
    except UnsupportedModel as error:
        raise UserError(f"--model {loaded.name}: {error}") from error
    if isinstance(loaded.clip, str):
        loaded = replace(loaded, clip=_loaded_once(loaded))
    tick(ALL)
    plain = measure_generate(loaded.model, inputs, warmup=1, **options)
    ways = [Way(ALL, asking.decoded(loaded, plain), plain)]
    cache = FeatureCache(float("inf"))
    pixels = {name: value for name, value in inputs.items() if name in family.vision_inputs}
    with torch.no_grad():
        encode_images(loaded.model, family, inputs["input_ids"], pixels, cache, attention=True)
    for method in methods:
        tick(method.name)
        ways.append(_way(loaded, method, inputs, question, cache, options))
    if all(way.run is None for way in ways[1:]):
        raise UserError(str(ways[1].reason))
    return ways


def _way(
    loaded: Loaded, method: Method, inputs: dict[str, Any], question: str, cache: FeatureCache, options: dict[str, Any]
) -> Way:
    try:
        with asking.prune(loaded, method, question, cache) as pruner:
            run = asking.measured(loaded, pruner, inputs, **options)
    except UserError as error:
        return Way(method.name, reason=str(error).removeprefix(f"--method {method.name}: "))
    return Way(method.name, asking.decoded(loaded, run), run, pruner.records)


def _loaded_once(loaded: Loaded) -> tuple[Any, Any]:
    """The dual encoder that `loaded.clip` names and its tokenizer, so that not each pruner reads them anew."""
    from vlprune.pruning.question import load_dual_encoder

    say_looking(loaded.clip)
    with one_sentence("--clip", loaded.clip):
        dual = load_dual_encoder(loaded.clip, loaded.model, loaded.processor)
    return dual.encoder, dual.tokenizer

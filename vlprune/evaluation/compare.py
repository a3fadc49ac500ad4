"""Methods side by side on one question: what each answers, keeps and costs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from textwrap import shorten
from typing import Any

import torch

from vlprune.errors import UnsupportedModel, UserError
from vlprune.evaluation.load_model import LoadedModel, with_loaded_clip
from vlprune.evaluation.one_question import (
    attach_pruner,
    count_tokens,
    decode_answer,
    join_records,
    measure_answer,
    tokens_as_json,
)
from vlprune.evaluation.reference_methods import ALL_TOKENS
from vlprune.measure import GenerationCost, measure_generate
from vlprune.methods import Accounting, Method
from vlprune.models import family_of
from vlprune.pruning.feature_cache import FeatureCache
from vlprune.pruning.probe import encode_images
from vlprune.record import Record


@dataclass(frozen=True)
class MethodResult:
    """The answer with all tokens, or by a method, and what it cost.

    Where the method cannot run, `reason` says why and `cost` is None.
    """

    name: str
    answer: str = ""
    cost: GenerationCost | None = None
    records: list[Record] = field(default_factory=list)
    reason: str | None = None

    @property
    def accounting(self) -> Accounting:
        """The visual tokens that entered the LLM, and how many a layer saw on average."""
        if self.records:
            return count_tokens(self.records)
        visual = self.cost.visual_tokens if self.cost is not None else 0
        return Accounting(visual, float(visual))

    @property
    def title(self) -> str:
        """Two lines: the name, then how many tokens are left in the end, and the answer."""
        entering, left = self.accounting.entering, self.record.after if self.records else self.accounting.entering
        count = f"{entering:,}" if left == entering else f"{entering:,} to {left:,}"
        return f"{self.name}\n{count} tokens → {shorten(self.answer, 24, placeholder=' ...') or '(nothing)'}"

    @property
    def record(self) -> Record:
        """What was kept, of all images together."""
        return join_records(self.records)

    @property
    def prunes_in_llm(self) -> bool:
        """Whether tokens were dropped between the LLM's layers."""
        return any(getattr(record, "stages", ()) for record in self.records)

    def to_json(self) -> dict[str, Any]:
        """The result for JSON; the seconds are without the vision tower's."""
        if self.cost is None:
            return {"reason": self.reason}
        latency = replace(self.cost.latency, vision=0.0)
        seconds = {name: value for name, value in asdict(latency).items() if name != "vision"}
        found = {"answer": self.answer, **self.accounting._asdict(), "kv_bytes": self.cost.kv_bytes}
        found["seconds"] = {**seconds, "total": latency.total}
        return {**found, "tokens": tokens_as_json(self.record)} if self.records else found


def compare_methods(
    loaded: LoadedModel,
    methods: Mapping[str, Method],
    inputs: dict[str, Any],
    question: str,
    *,
    tick: Callable[[str], None] = lambda name: None,
    **options: Any,
) -> list[MethodResult]:
    """The answer with all tokens, then by each method, given by name; `options` go to `measure_generate`.

    The plain model runs the vision tower for itself, all methods together once more. `tick(name)` is called before
    each. Raises `UserError` where none of the methods can run.
    """
    try:
        family = family_of(loaded.model)
    except UnsupportedModel as error:
        raise UserError(f"--model {loaded.name}: {error}") from error
    loaded = with_loaded_clip(loaded)
    tick(ALL_TOKENS)
    plain = measure_generate(loaded.model, inputs, warmup=1, **options)
    results = [MethodResult(ALL_TOKENS, decode_answer(loaded, plain), plain)]
    features = FeatureCache(float("inf"))
    pixels = {name: value for name, value in inputs.items() if name in family.vision_inputs}
    with torch.no_grad():
        encode_images(loaded.model, family, inputs["input_ids"], pixels, features, attention=True)
    for name, method in methods.items():
        tick(name)
        results.append(_run_method(loaded, name, method, inputs, question, features, options))
    if all(result.cost is None for result in results[1:]):
        raise UserError(str(results[1].reason))
    return results


def _run_method(
    loaded: LoadedModel,
    name: str,
    method: Method,
    inputs: dict[str, Any],
    question: str,
    features: FeatureCache,
    options: dict[str, Any],
) -> MethodResult:
    """One method's answer, or the reason why it cannot run."""
    try:
        with attach_pruner(loaded, method, question, features) as pruner:
            cost = measure_answer(loaded, pruner, inputs, **options)
    except UserError as error:
        return MethodResult(name, reason=str(error).removeprefix(f"--method {method.name}: "))
    return MethodResult(name, decode_answer(loaded, cost), cost, pruner.records)

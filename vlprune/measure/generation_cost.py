"""What one `generate` costs: tokens, operations, bytes and seconds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from vlprune.measure.flops import Flops, LLMShape, llm_flops
from vlprune.measure.latency import Clock, Latency
from vlprune.measure.memory import kv_cache_bytes
from vlprune.models import family_of
from vlprune.record import Record


@dataclass(frozen=True)
class GenerationCost:
    """The generated ids `new_ids` (B, new tokens), and what they cost.

    `prompt_tokens` entered the LLM, per row; `visual_tokens` are the visual ones among them, in all rows together;
    `flops` is None for a decoder whose formula is not known, and for a batch that loses tokens inside the LLM.
    """

    new_ids: Tensor
    prompt_tokens: int
    visual_tokens: int
    flops: Flops | None
    kv_bytes: int
    latency: Latency


def measure_generate(
    model: Any, inputs: dict[str, Any], *, pruner: Any = None, repeats: int = 1, warmup: int = 0, **options: Any
) -> GenerationCost:
    """Run `model.generate(**inputs, **options)`, greedy unless told otherwise, and measure its cost.

    `inputs` come from the processor; `pruner` is the one attached to the model, if any (give it `cache_bytes=0` to time
    the tower in every run). The seconds are medians over `repeats`, after `warmup` runs that do not count. Beams are
    not counted.

    >>> import torch
    >>> from vlprune import pocket
    >>> model, processor, _ = pocket.load()
    >>> image = torch.zeros(3, 192, 192, dtype=torch.uint8)
    >>> inputs = processor(images=image, text="USER: <image> is there a red star? ASSISTANT:", return_tensors="pt")
    >>> run = measure_generate(model, inputs, max_new_tokens=1)
    >>> run.visual_tokens, f"{run.flops.total / 1e9:.1f} G", run.kv_bytes == run.prompt_tokens * 2 * 6 * 256 * 4
    (576, '7.7 G', True)
    """
    if repeats < 1 or warmup < 0:
        raise ValueError(f"repeats={repeats}, warmup={warmup}: at least one repeat, and no negative warm-up.")
    if options.get("num_beams", 1) != 1:
        raise ValueError(f"num_beams={options['num_beams']}: beams are not counted, pass 1.")
    options = {"do_sample": False, **options, "return_dict_in_generate": True}
    times: list[Latency] = []
    for _ in range(warmup):
        model.generate(**inputs, **options)
    for _ in range(repeats):
        with Clock(model, pruner) as clock:
            output = model.generate(**inputs, **options)
        times.append(clock.latency)
    ids = inputs["input_ids"]
    new_ids = output.sequences[:, ids.shape[1] :]
    batch, prompt = clock.prompt
    records = pruner.records if pruner is not None else []
    visual = count_visual_tokens(model, ids, pruner)
    flops = None
    if LLMShape.knows(model) and (batch == 1 or not any(record.stages for record in records)):
        flops = llm_flops(model, layer_lengths(model, prompt, records), new_ids.shape[1], batch=batch)
    kv_bytes = kv_cache_bytes(output.past_key_values)
    return GenerationCost(new_ids, prompt, visual, flops, kv_bytes, Latency.median(times))


def count_visual_tokens(model: Any, ids: Tensor, pruner: Any = None) -> int:
    """The visual tokens, structural ones included, of the prompts `ids` that entered the LLM in the last call."""
    family = pruner.family if pruner is not None else family_of(model)
    records = pruner.records if pruner is not None else []
    whole = sum(int((ids == modality.placeholder).sum()) for modality in family.modalities(model))
    return whole - sum(one.before - one.entering + one.structure[0] - one.structure[1] for one in records)


def layer_lengths(model: Any, prompt: int, records: list[Record]) -> list[int]:
    """How many tokens each layer of the LLM sees of one prompt that enters it with `prompt` tokens.

    >>> import torch
    >>> from vlprune.measure import LLMShape
    >>> llm = LLMShape(layers=4, width=8, inner=8, heads=1, kv_heads=1, head_width=8, vocabulary=9)
    >>> cut = ((1, torch.arange(5)), (3, torch.arange(2)))
    >>> layer_lengths(llm, 20, [Record(torch.arange(2), 9, 2, (3, 3), stages=cut, entered=9, layers=4)])
    [20, 16, 16, 13]
    """
    lengths = []
    for layer in range(LLMShape.of(model).layers):
        gone = 0
        for record in records:
            left = [len(kept) for cut, kept in record.stages if cut <= layer]
            gone += record.entering - left[-1] if left else 0
        lengths.append(prompt - gone)
    return lengths

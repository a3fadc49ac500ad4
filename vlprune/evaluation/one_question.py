"""One question to a loaded model: the prompt, the pruner, the answer, and what it cost."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from vlprune.errors import UserError
from vlprune.evaluation.load_model import Loaded, one_sentence, say_looking

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from vlprune.measure import Run
    from vlprune.media.video import Clip
    from vlprune.methods import Accounting, Method
    from vlprune.pruner import Pruner
    from vlprune.pruning.feature_cache import FeatureCache
    from vlprune.record import Record

FALLBACK_PROMPT = "USER: {placeholder}\n{question} ASSISTANT:"  # LLaVA-1.5's, for checkpoints without a chat template


def prepare(loaded: Loaded, shown: Image.Image | Clip, question: str) -> dict[str, Any]:
    """What the model's `generate` takes to answer about an image or a video, by its chat template."""
    from vlprune.media.video import Clip

    processor, kind = loaded.processor, "video" if isinstance(shown, Clip) else "image"
    placeholders = {name: getattr(processor, f"{name}_token", f"<{name}>") for name in ("image", "video")}
    for name, word in (("image", "an image"), ("video", "a video")):
        if placeholders[name] in question:
            raise UserError(
                f"the question holds {placeholders[name]!r}, which stands for {word} in the prompt: leave it out."
            )
    turn = [{"role": "user", "content": [{"type": kind}, {"type": "text", "text": question}]}]
    if getattr(processor, "chat_template", None):
        prompt = processor.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    else:
        print(f"vlprune: {loaded.name} has no chat template; LLaVA-1.5's is used.", file=sys.stderr)
        prompt = FALLBACK_PROMPT.format(placeholder=placeholders[kind], question=question)
    if isinstance(shown, Clip):
        import numpy as np

        sampled = {"do_sample_frames": False, "video_metadata": [shown.metadata]}
        given: dict[str, Any] = {"videos": [np.stack(shown.frames)], **sampled}
    else:
        given = {"images": shown}
    try:
        inputs = processor(text=prompt, return_tensors="pt", **given).to(loaded.model.device)
    except ValueError as error:
        raise UserError(f"--model {loaded.name} cannot take this {kind} ({str(error).rstrip('.')}).") from error
    dtype = loaded.model.dtype
    return {name: value.to(dtype) if name.startswith("pixel_values") else value for name, value in inputs.items()}


def prune(loaded: Loaded, method: Method, question: str, cache: FeatureCache | None = None) -> Pruner:
    """The pruner; without a cache it keeps no features, so that the time of the vision tower is seen."""
    from vlprune.errors import UnsupportedModel
    from vlprune.pruner import attach

    if isinstance(loaded.clip, str):
        say_looking(loaded.clip)
    with one_sentence("--clip", str(loaded.clip)):
        try:
            return attach(
                loaded.model,
                method,
                processor=loaded.processor,
                query=question,
                dual_encoder=loaded.clip,
                cache_bytes=0,
                feature_cache=cache,
            )
        except UnsupportedModel as error:
            raise UserError(f"--model {loaded.name}: {error}") from error
        except ValueError as error:  # settings that do not go with this model, such as relevance=clip without --clip
            raise UserError(f"--method {method.name}: {error}") from error


def measured(loaded: Loaded, pruner: Pruner, inputs: dict[str, Any], **options: Any) -> Run:
    """The pruned answer, and what it cost."""

    from vlprune.errors import UnsupportedModel
    from vlprune.measure import measure_generate

    try:
        run = measure_generate(loaded.model, inputs, pruner=pruner, **options)
    except ValueError as error:
        if str(error).startswith("keep="):
            raise UserError(f"--{error}".replace("--keep=", "--keep ")) from error
        raise UserError(f"--method {pruner.method.name}: {error}") from error  # what this model does not give
    except UnsupportedModel as error:
        raise UserError(f"--model {loaded.name}: {error}") from error
    if not pruner.records:
        raise UserError(f"--model {loaded.name}: family {pruner.family.name!r} prunes no videos.")
    return run


def accounted(records: Sequence[Record]) -> Accounting:
    """The visual tokens of all records that entered the LLM, and how many of them a layer saw on average.

    >>> import torch
    >>> from vlprune.record import Record
    >>> accounted([Record(torch.arange(2), before=4, after=2, grid=(2, 2))] * 3)
    Accounting(entering=6, layer_average=6.0)
    """
    from vlprune.methods import Accounting

    entering = sum(getattr(record, "entering", record.after) for record in records)
    return Accounting(entering, float(sum(getattr(record, "layer_average", record.after) for record in records)))


def together(records: Sequence[Record]) -> Record:
    """One record of all: some models take the tiles of an image, or the frames of a video, for images of their own.

    >>> import torch
    >>> from vlprune.types import squares
    >>> from vlprune.record import Record
    >>> one = Record(torch.tensor([0, 3]), 4, 2, (2, 2), parts=squares("image", "image", 4).parts)
    >>> both = together([one, one])
    >>> both.kept.tolist(), both.before, [part.tokens.tolist() for part in both.parts]
    ([0, 3, 4, 7], 8, [[0, 1, 2, 3], [4, 5, 6, 7]])
    """
    from dataclasses import replace

    import torch

    from vlprune.types import Part

    if len(records) == 1:
        return records[0]
    starts = [0]
    for record in records:
        starts.append(starts[-1] + record.before)

    def joined(name: str) -> Tensor | None:
        found = [record.scores[name] for record in records if name in record.scores]
        return torch.cat(found) if found else None

    inside: dict[str, Any] = {}  # what was dropped between the LLM's layers, where something was
    if cuts := list(zip(*(getattr(record, "stages", ()) for record in records))):
        inside["entered"] = accounted(records).entering
        inside["stages"] = tuple(
            (cut[0][0], torch.cat([kept + start for (_, kept), start in zip(cut, starts)])) for cut in cuts
        )
    return replace(
        records[0],
        kept=torch.cat([record.kept + start for record, start in zip(records, starts)]),
        before=starts[-1],
        after=sum(record.after for record in records),
        grid=(1, starts[-1]),
        structure=(sum(record.structure[0] for record in records), sum(record.structure[1] for record in records)),
        parts=tuple(
            Part(part.name, part.grid, part.tokens + start)
            for record, start in zip(records, starts)
            for part in record.parts
        ),
        order=None,
        redundancy=joined("redundancy"),
        relevance=joined("relevance"),
        ranking=joined("ranking"),
        **inside,
    )


def counts(records: Sequence[Record]) -> str:
    """How many tokens were kept, in words.

    >>> import torch
    >>> from vlprune.record import Record
    >>> record = Record(torch.arange(320), before=2880, after=320, grid=(1, 2880), structure=(48, 31))
    >>> counts([record])
    'kept 320 of 2,880 visual tokens, and 31 of 48 structural ones (newlines and the like).'
    """
    record = together(records)
    said = f"kept {record.after:,} of {record.before:,} visual tokens"
    if len(records) > 1:
        said += f" of {len(records)} images, which is what this model takes its tiles or frames for"
    entering, average = accounted(records)
    if average != record.after:
        said += f" in the last layers ({entering:,} entered the LLM, whose layers saw {average:,.1f} on average)"
    before, after = record.structure
    return said + (f", and {after:,} of {before:,} structural ones (newlines and the like)." if before else ".")


def decoded(loaded: Loaded, run: Run) -> str:
    """The answer in words."""
    return str(loaded.processor.batch_decode(run.new, skip_special_tokens=True)[0]).strip()


def cost(run: Run) -> dict[str, Any]:
    """A run's numbers, for JSON."""
    from dataclasses import asdict

    from vlprune.measure import CONVENTIONS

    flops = run.flops
    counted: dict[str, Any] | None = None
    if flops is not None:
        counted = {"prefill": flops.prefill, "decode": flops.decode, "total": flops.total}
        counted["convention"] = CONVENTIONS[flops.convention]
    return {
        "visual_tokens": run.visual_tokens,
        "prompt_tokens": run.prompt_tokens,
        "new_tokens": int(run.new.shape[1]),
        "llm_flops": counted,
        "kv_bytes": run.kv_bytes,
        "seconds": {**asdict(run.latency), "total": run.latency.total},
    }


def whole_cost(loaded: Loaded, run: Run, record: Record) -> dict[str, str]:
    """What the same answer would have cost with all visual tokens, as far as formulas say, for `cost_table`."""
    from vlprune.cli.tables import amount
    from vlprune.measure import LLMShape, kv_bytes, llm_flops

    if not LLMShape.knows(loaded.model):
        return {}
    dropped = record.before - accounted([record]).entering + record.structure[0] - record.structure[1]
    prompt, new = run.prompt_tokens + dropped, int(run.new.shape[1])
    return {
        "LLM FLOPs": amount(llm_flops(loaded.model, prompt, new).total),
        "KV bytes": amount(kv_bytes(loaded.model, prompt + new - 1), "B"),
    }


def chosen(record: Record) -> dict[str, Any]:
    """What was kept, for JSON."""
    kept = set(record.kept.tolist())
    parts = [
        {"name": part.name, "grid": list(part.grid), "after": len(kept.intersection(part.tokens.tolist()))}
        for part in record.parts
    ]
    return {
        "kind": record.kind,
        "before": record.before,
        "after": record.after,
        **accounted([record])._asdict(),
        "structure": dict(zip(("before", "after"), record.structure)),
        "grid": list(record.grid),
        "parts": parts,
        "kept": record.kept.tolist(),
        "order": record.order.tolist() if record.order is not None else None,
        "relevance": record.source,
    }


def views(loaded: Loaded, inputs: dict[str, Any], shown: Image.Image | Clip, record: Record) -> Any:
    """What a picture shows the tokens on: the image, or the tiles or frames, one for each part of the record.

    As the model saw them, where the pixels it got are whole images; else as they were before the processor.
    """
    from PIL import Image

    from vlprune.media.image import as_seen
    from vlprune.media.video import Clip

    parts, processor = len(record.parts), loaded.processor
    pixels = next(inputs[name] for name in inputs if name.startswith("pixel_values"))
    if pixels.ndim >= 4 and record.parts[0].name != "base":
        pixels = pixels.flatten(0, -4)
        if len(pixels) == parts:
            scaling = processor.video_processor if isinstance(shown, Clip) else processor
            seen = [as_seen(one, scaling) for one in pixels]
            return seen if parts > 1 else seen[0]
    if isinstance(shown, Clip):
        step = -(-len(shown.frames) // parts)  # some models join neighbouring frames
        return [Image.fromarray(frame) for frame in shown.frames[::step]]
    return shown

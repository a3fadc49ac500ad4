"""One question to a loaded model: the prompt, the pruner, the answer, and what it cost."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from vlprune.errors import UserError, describe_error, is_fault, is_out_of_memory
from vlprune.evaluation.load_model import LoadedModel, announce_hub_lookup, explain_load_errors

if TYPE_CHECKING:
    from PIL import Image
    from torch import Tensor

    from vlprune.measure import GenerationCost
    from vlprune.media.video import Clip
    from vlprune.methods import Accounting, Method
    from vlprune.pruner import Pruner
    from vlprune.pruning.feature_cache import FeatureCache
    from vlprune.record import Record

FALLBACK_PROMPT = "USER: {placeholder}\n{question} ASSISTANT:"  # LLaVA-1.5's, for checkpoints without a chat template


def prepare_inputs(loaded: LoadedModel, shown: Image.Image | Clip, question: str) -> dict[str, Any]:
    """The inputs of the model's `generate` for a question about an image or a video."""
    from vlprune.media.video import Clip

    kind = "video" if isinstance(shown, Clip) else "image"
    prompt = _prompt(loaded, kind, question)
    if isinstance(shown, Clip):
        import numpy as np

        sampled = {"do_sample_frames": False, "video_metadata": [shown.metadata]}
        given: dict[str, Any] = {"videos": [np.stack(shown.frames)], **sampled}
    else:
        given = {"images": shown}
    try:
        inputs = loaded.processor(text=prompt, return_tensors="pt", **given).to(loaded.model.device)
    except BaseException as error:  # a checkpoint's processor may say anything at all, and raise anything on it
        if not is_fault(error) or is_out_of_memory(error):
            raise
        said = str(error).rstrip(".") if isinstance(error, ValueError) else describe_error(error)
        raise UserError(f"--model {loaded.name} cannot take this {kind} ({said}).") from error
    dtype = loaded.model.dtype
    return {name: value.to(dtype) if name.startswith("pixel_values") else value for name, value in inputs.items()}


def _prompt(loaded: LoadedModel, kind: str, question: str) -> str:
    """The prompt that asks about an "image" or a "video", by the model's chat template or else LLaVA-1.5's."""
    processor = loaded.processor
    placeholders = {name: getattr(processor, f"{name}_token", f"<{name}>") for name in ("image", "video")}
    for name, word in (("image", "an image"), ("video", "a video")):
        if placeholders[name] in question:
            raise UserError(
                f"the question holds {placeholders[name]!r}, which stands for {word} in the prompt: leave it out."
            )
    if getattr(processor, "chat_template", None):
        turn = [{"role": "user", "content": [{"type": kind}, {"type": "text", "text": question}]}]
        return str(processor.apply_chat_template(turn, add_generation_prompt=True, tokenize=False))
    print(f"vlprune: {loaded.name} has no chat template; LLaVA-1.5's is used.", file=sys.stderr)
    return FALLBACK_PROMPT.format(placeholder=placeholders[kind], question=question)


def attach_pruner(loaded: LoadedModel, method: Method, question: str, features: FeatureCache | None = None) -> Pruner:
    """Attach a method to the model; without `features` none are cached, so that the vision tower is timed."""
    from vlprune.errors import UnsupportedModel
    from vlprune.pruner import attach

    if isinstance(loaded.clip, str):
        announce_hub_lookup(loaded.clip)
    with explain_load_errors("--dual-encoder", str(loaded.clip)):
        try:
            return attach(
                loaded.model,
                method,
                processor=loaded.processor,
                query=question,
                dual_encoder=loaded.clip,
                cache_bytes=0,
                feature_cache=features,
            )
        except UnsupportedModel as error:
            raise UserError(f"--model {loaded.name}: {error}") from error
        except ValueError as error:  # settings that do not go with this model
            raise UserError(f"--method {method.name}: {error}") from error


@contextmanager
def explain_method_errors(loaded: LoadedModel, method: Method) -> Iterator[None]:
    """Turn errors about budgets, settings and models that do not go together into a one-sentence `UserError`."""
    from vlprune.errors import UnsupportedModel

    try:
        yield
    except ValueError as error:
        if str(error).startswith("keep="):
            raise UserError(f"--{error}".replace("--keep=", "--keep ")) from error
        said = str(error).strip().rstrip(".")
        raise UserError(f"--method {method.name}: {said}.") from error  # what this model does not give
    except UnsupportedModel as error:
        raise UserError(f"--model {loaded.name}: {error}") from error
    except UserError:
        raise
    except BaseException as error:  # a checkpoint's config may say anything at all, and its model raise anything on it
        if not is_fault(error) or is_out_of_memory(error):
            raise
        raise UserError(f"--model {loaded.name} cannot answer ({describe_error(error)}).") from error


def measure_answer(loaded: LoadedModel, pruner: Pruner, inputs: dict[str, Any], **options: Any) -> GenerationCost:
    """Generate with the attached pruner, and measure the cost; `options` go to `measure_generate`."""
    from vlprune.measure import measure_generate

    with explain_method_errors(loaded, pruner.method):
        cost = measure_generate(loaded.model, inputs, pruner=pruner, **options)
    if not pruner.records:
        raise UserError(f"--model {loaded.name}: family {pruner.family.name!r} prunes no videos.")
    return cost


def count_tokens(records: Sequence[Record]) -> Accounting:
    """Count the visual tokens of all records that entered the LLM, and those that a layer saw on average.

    >>> import torch
    >>> from vlprune.record import Record
    >>> count_tokens([Record(torch.arange(2), before=4, after=2, grid=(2, 2))] * 3)
    Accounting(entering=6, layer_average=6.0)
    """
    from vlprune.methods import Accounting

    entering = sum(getattr(record, "entering", record.after) for record in records)
    return Accounting(entering, float(sum(getattr(record, "layer_average", record.after) for record in records)))


def join_records(records: Sequence[Record]) -> Record:
    """Join records into one: some models take the tiles of an image, or the frames of a video, for images of their own.

    >>> import torch
    >>> from vlprune.types import square_shape
    >>> from vlprune.record import Record
    >>> one = Record(torch.tensor([0, 3]), 4, 2, (2, 2), parts=square_shape("image", "image", 4).parts)
    >>> both = join_records([one, one])
    >>> both.kept.tolist(), both.before, [part.tokens.tolist() for part in both.parts]
    ([0, 3, 4, 7], 8, [[0, 1, 2, 3], [4, 5, 6, 7]])
    """
    from dataclasses import replace

    import torch

    from vlprune.types import GridPart

    if len(records) == 1:
        return records[0]
    starts = [0]
    for record in records:
        starts.append(starts[-1] + record.before)

    def joined(name: str) -> Tensor | None:
        found = [record.scores[name] for record in records if name in record.scores]
        return torch.cat(found) if found else None

    return replace(
        records[0],
        kept=torch.cat([record.kept + start for record, start in zip(records, starts)]),
        before=starts[-1],
        after=sum(record.after for record in records),
        grid=(1, starts[-1]),
        structure=(sum(record.structure[0] for record in records), sum(record.structure[1] for record in records)),
        parts=tuple(
            GridPart(part.name, part.grid, part.tokens + start)
            for record, start in zip(records, starts)
            for part in record.parts
        ),
        order=None,
        redundancy=joined("redundancy"),
        relevance=joined("relevance"),
        ranking=joined("ranking"),
        **_join_stages(records, starts),
    )


def _join_stages(records: Sequence[Record], starts: Sequence[int]) -> dict[str, Any]:
    """What a joined record says of tokens dropped between the LLM's layers; nothing if none were."""
    import torch

    stages = list(zip(*(getattr(record, "stages", ()) for record in records)))
    if not stages:
        return {}
    joined = [(stage[0][0], torch.cat([kept + start for (_, kept), start in zip(stage, starts)])) for stage in stages]
    return {"entered": count_tokens(records).entering, "stages": tuple(joined)}


def describe_counts(records: Sequence[Record]) -> str:
    """A sentence that says how many tokens were kept.

    >>> import torch
    >>> from vlprune.record import Record
    >>> record = Record(torch.arange(320), before=2880, after=320, grid=(1, 2880), structure=(48, 31))
    >>> describe_counts([record])
    'kept 320 of 2,880 visual tokens, and 31 of 48 structural ones (newlines and the like).'
    """
    record = join_records(records)
    said = f"kept {record.after:,} of {record.before:,} visual tokens"
    if len(records) > 1:
        said += f" of {len(records)} images, which is what this model takes its tiles or frames for"
    entering, average = count_tokens(records)
    if average != record.after:
        said += f" in the last layers ({entering:,} entered the LLM, whose layers saw {average:,.1f} on average)"
    before, after = record.structure
    return said + (f", and {after:,} of {before:,} structural ones (newlines and the like)." if before else ".")


def decode_answer(loaded: LoadedModel, cost: GenerationCost) -> str:
    """The text of the answer."""
    return str(loaded.processor.batch_decode(cost.new_ids, skip_special_tokens=True)[0]).strip()


def warn_of_limits(loaded: LoadedModel, shown: Image.Image | Clip, question: str, answer: str) -> None:
    """Print a line on the standard error if a model that comes with vlprune was asked about what it cannot know."""
    from PIL import Image

    from vlprune.pocket.limits import explain_limits, explain_photo_limits

    limits = None
    if loaded.name == "pocket" and isinstance(shown, Image.Image):
        limits = explain_limits(question, shown, answer)
    elif loaded.name == "photo":
        limits = explain_photo_limits(question, loaded.processor.tokenizer.get_vocab(), answer)
    if limits is not None:
        print(f"vlprune: {limits}", file=sys.stderr)


def cost_as_json(cost: GenerationCost) -> dict[str, Any]:
    """A cost, for JSON."""
    from dataclasses import asdict

    from vlprune.measure import CONVENTIONS

    flops = cost.flops
    counted: dict[str, Any] | None = None
    if flops is not None:
        counted = {"prefill": flops.prefill, "decode": flops.decode, "total": flops.total}
        counted["convention"] = CONVENTIONS[flops.convention]
    return {
        "visual_tokens": cost.visual_tokens,
        "prompt_tokens": cost.prompt_tokens,
        "new_tokens": int(cost.new_ids.shape[1]),
        "llm_flops": counted,
        "kv_bytes": cost.kv_bytes,
        "seconds": {**asdict(cost.latency), "total": cost.latency.total},
    }


def whole_cost(loaded: LoadedModel, cost: GenerationCost, record: Record) -> dict[str, float]:
    """LLM operations and KV bytes of the same answer with all visual tokens, by formula; {} if there is none."""
    from vlprune.measure import LLMShape, kv_bytes, llm_flops

    if not LLMShape.knows(loaded.model):
        return {}
    dropped = record.before - count_tokens([record]).entering + record.structure[0] - record.structure[1]
    prompt, new = cost.prompt_tokens + dropped, int(cost.new_ids.shape[1])
    return {"flops": llm_flops(loaded.model, prompt, new).total, "kv_bytes": kv_bytes(loaded.model, prompt + new - 1)}


def tokens_as_json(record: Record) -> dict[str, Any]:
    """A record, for JSON."""
    kept = set(record.kept.tolist())
    parts = [
        {"name": part.name, "grid": list(part.grid), "after": len(kept.intersection(part.tokens.tolist()))}
        for part in record.parts
    ]
    return {
        "kind": record.kind,
        "before": record.before,
        "after": record.after,
        **count_tokens([record])._asdict(),
        "structure": dict(zip(("before", "after"), record.structure)),
        "grid": list(record.grid),
        "parts": parts,
        "kept": record.kept.tolist(),
        "order": record.choices if record.order is not None else None,
        "relevance": record.source,
    }


def picture_backgrounds(loaded: LoadedModel, inputs: dict[str, Any], shown: Image.Image | Clip, record: Record) -> Any:
    """The images that a picture draws the tokens on: the image, or its tiles or frames, one per part of the record.

    As the model saw them, where the pixels it got are whole images; else as they were before the processor.
    """
    from PIL import Image

    from vlprune.media.image import image_from_pixels
    from vlprune.media.video import Clip

    parts, processor = len(record.parts), loaded.processor
    pixels = next(inputs[name] for name in inputs if name.startswith("pixel_values"))
    if pixels.ndim >= 4 and record.parts[0].name != "base":
        pixels = pixels.flatten(0, -4)
        if len(pixels) == parts:
            scaling = processor.video_processor if isinstance(shown, Clip) else processor
            seen = [image_from_pixels(one, scaling) for one in pixels]
            return seen if parts > 1 else seen[0]
    if isinstance(shown, Clip):
        step = -(-len(shown.frames) // parts)  # some models join neighbouring frames
        return [Image.fromarray(frame) for frame in shown.frames[::step]]
    return shown

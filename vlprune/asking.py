"""One question to a loaded model: the prompt, the pruner, the answer, and what it cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from vlprune.loading import Loaded, UserError, one_sentence, say_looking

if TYPE_CHECKING:
    from PIL import Image

    from vlprune.measure import Run
    from vlprune.methods import Method
    from vlprune.record import Record

FALLBACK_PROMPT = "USER: <image>\n{question} ASSISTANT:"  # LLaVA-1.5's, for checkpoints without a chat template


def prepare(loaded: Loaded, image: Image.Image, question: str) -> dict[str, Any]:
    """What the model's `generate` takes, by its chat template."""
    placeholder = getattr(loaded.processor, "image_token", "<image>")
    if placeholder in question:
        raise UserError(f"the question holds {placeholder!r}, which stands for an image in the prompt: leave it out.")
    turn = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": question}]}]
    if getattr(loaded.processor, "chat_template", None):
        prompt = loaded.processor.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    else:
        print(f"vlprune: {loaded.name} has no chat template; LLaVA-1.5's is used.", file=sys.stderr)
        prompt = FALLBACK_PROMPT.format(question=question)
    inputs = loaded.processor(images=image, text=prompt, return_tensors="pt").to(loaded.model.device)
    inputs["pixel_values"] = inputs["pixel_values"].to(loaded.model.dtype)
    return dict(inputs)


def visual_tokens(loaded: Loaded, inputs: dict[str, Any], method: Method) -> int:
    """How many visual tokens the prompt has, if they are enough for the method's budget."""
    visual = int((inputs["input_ids"] == loaded.model.config.image_token_id).sum())
    try:
        method.count(visual)
    except ValueError as error:
        raise UserError(f"--{error}".replace("--keep=", "--keep ")) from error
    return visual


def prune(loaded: Loaded, method: Method, question: str) -> Any:
    """The pruner; it keeps no features, so that the time of the vision tower is seen."""
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
            )
        except UnsupportedModel as error:
            raise UserError(f"--model {loaded.name}: {error}") from error
        except ValueError as error:  # settings that do not go with this model, such as relevance=clip without --clip
            raise UserError(f"--method {method.name}: {error}") from error


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


def whole_cost(loaded: Loaded, run: Run, visual: int) -> dict[str, str]:
    """What the same answer would have cost with all visual tokens, as far as formulas say, for `cost_table`."""
    from vlprune.measure import LLMShape, kv_bytes, llm_flops
    from vlprune.show.tables import amount

    if not LLMShape.knows(loaded.model):
        return {}
    prompt, new = run.prompt_tokens - run.visual_tokens + visual, int(run.new.shape[1])
    return {
        "LLM FLOPs": amount(llm_flops(loaded.model, prompt, new).total),
        "KV bytes": amount(kv_bytes(loaded.model, prompt + new - 1), "B"),
    }


def chosen(record: Record) -> dict[str, Any]:
    """What was kept, for JSON."""
    return {
        "before": record.before,
        "after": record.after,
        "grid": list(record.grid),
        "kept": record.kept.tolist(),
        "order": record.order.tolist() if record.order is not None else None,
        "relevance": record.source,
    }

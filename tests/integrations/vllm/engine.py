"""An engine for the tests, and the answers it should give: `attach` on transformers, one prompt at a time."""

from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from tests.integrations.vllm import checkpoints
from vlprune import attach
from vlprune.models import register_family
from vlprune.models.llava_next import LlavaNext
from vlprune.models.llava_onevision import LlavaOnevision

NEW_TOKENS = 10


@dataclass(frozen=True, eq=False)
class Ask:
    """One request: a question, its pictures, and what it says about pruning."""

    text: str
    images: tuple[Any, ...] = ()
    videos: tuple[Any, ...] = ()
    ours: dict[str, Any] = field(default_factory=dict)

    def prompt(self, processor):
        """As `LLM.generate` takes it."""
        data = {}
        if self.images:
            data["image"] = list(self.images)
        if self.videos:
            data["video"] = list(self.videos)
        asked = {"prompt": checkpoints.chat(processor, self.text, len(self.images), len(self.videos))}
        if data:
            asked["multi_modal_data"] = data
        if self.ours:
            asked["mm_processor_kwargs"] = self.ours
        return asked


def start(folder, method, limits=None, **options):
    """An engine in this process. `options` go to `vllm.LLM` or, `cache_bytes` and `dual_encoder`, to `overrides`."""
    from vllm import LLM

    from vlprune.integrations.vllm import overrides

    own = {name: options.pop(name) for name in ("cache_bytes", "dual_encoder") if name in options}
    given = {"dtype": "float32", "enforce_eager": True, "max_model_len": 512, "max_num_seqs": 32}
    given |= {"max_num_batched_tokens": 512, "block_size": 32, "limit_mm_per_prompt": limits or {"image": 3}}
    return LLM(folder, **{**given, "hf_overrides": overrides(method, **own), **options})


def answers(llm, asks, processor):
    """The new token ids of each request, all in one batch."""
    from vllm import SamplingParams

    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    return [list(out.outputs[0].token_ids) for out in llm.generate([a.prompt(processor) for a in asks], params)]


def expected(folder, method, ask, **options):
    """The new token ids that `attach` gives for one request alone."""
    model, processor = checkpoints.reference(folder)
    prompt = checkpoints.chat(processor, ask.text, len(ask.images), len(ask.videos))
    given = {"images": list(ask.images) or None, "videos": list(ask.videos) or None}
    if ask.videos and isinstance(ask.videos[0], tuple):  # frames, and when they were taken
        given["videos"], given["video_metadata"] = [list(part) for part in zip(*ask.videos)]
        given["do_sample_frames"] = False
    inputs = processor(text=[prompt], return_tensors="pt", **{k: v for k, v in given.items() if v is not None})
    sizes = {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, "do_sample": False}
    if not ask.images and not ask.videos:
        out = model.generate(**inputs, **sizes)
    else:
        with attach(model, method, processor=processor, **options):
            out = model.generate(**inputs, **sizes)
    return out[0, inputs["input_ids"].shape[1] :].tolist()


def model_of(llm):
    """The model inside an engine of this process."""
    return llm.llm_engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner.model


def same_image(count):
    """Several questions about one picture."""
    return [Ask(checkpoints.question(200 + i), (checkpoints.picture(7),)) for i in range(count)]


# vLLM counts a prompt's tokens before an image is encoded, so there every newline stays: here too.


@lru_cache(maxsize=64)
def _every_newline(shape):
    return shape if shape.lines is None else replace(shape, lines=None)


class _LlavaNext(LlavaNext):
    def image_shapes(self, *args):
        return [_every_newline(shape) for shape in super().image_shapes(*args)]


class _LlavaOnevision(LlavaOnevision):
    def image_shapes(self, *args):
        return [_every_newline(shape) for shape in super().image_shapes(*args)]


def keep_every_newline():
    """From here on `attach` keeps the newlines of LLaVA-NeXT and LLaVA-OneVision, all of them."""
    register_family(_LlavaNext, replace=True)
    register_family(_LlavaOnevision, replace=True)

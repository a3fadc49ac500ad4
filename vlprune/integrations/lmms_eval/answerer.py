"""A model that answers batches of samples, with a pruner attached or none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vlprune.errors import UserError
from vlprune.evaluation.load_model import LoadedModel, with_loaded_clip
from vlprune.evaluation.one_question import FALLBACK_PROMPT, count_tokens
from vlprune.integrations.lmms_eval.samples import Sample
from vlprune.methods import Method
from vlprune.pruner import attach

USUAL_NEW_TOKENS = 1024  # where a task does not say how long an answer may be
PASSED_ON = ("max_new_tokens", "num_beams", "repetition_penalty")


class Answerer:
    """A loaded model with one method attached, or with none (`method=None`); `frames` are shown of each video.

    The pruner stays attached from answer to answer, so that an image's features, and CUDA graphs, are made once.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        method: Method | None,
        *,
        frames: int = 16,
        resolution: int | None = None,
        cuda_graphs: bool | str = False,
    ) -> None:
        self.frames, self.resolution, self.pruner = frames, resolution, None
        if method is not None:
            loaded = with_loaded_clip(loaded) if method.reads_question else loaded
            encoder = loaded.clip if method.reads_question else None
            options: dict[str, Any] = {"dual_encoder": encoder, "cuda_graphs": cuda_graphs}
            self.pruner = attach(loaded.model, method, processor=loaded.processor, **options)
        self.loaded, self.model, self.processor = loaded, loaded.model, loaded.processor

    def close(self) -> None:
        """Give the model back as it was."""
        if self.pruner is not None:
            self.pruner.detach()

    def generate(self, samples: Sequence[Sample], options: Mapping[str, Any]) -> list[dict[str, Any]]:
        """Answer samples that show equally many images and videos: {"answer", "tokens", "entering"} for each.

        `options` are a task's `generation_kwargs`; `tokens` were generated, and so many visual ones entered the LLM
        (None if none was dropped).
        """
        inputs = self.prepare(samples)
        self._ask(samples)
        with torch.no_grad():
            out = self.model.generate(**inputs, **self._generate_options(options))
        new = out[:, inputs["input_ids"].shape[1] :]
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        texts = tokenizer.batch_decode(new, skip_special_tokens=True)
        ends = _end_ids(self.model)
        return [
            {"answer": _cut(text, options.get("until")), "tokens": _length(ids, ends), "entering": self._entering(row)}
            for row, (text, ids) in enumerate(zip(texts, new.tolist()))
        ]

    def loglikelihood(self, sample: Sample, continuation: str) -> tuple[float, bool]:
        """The log-probability of a continuation of the prompt, and whether greedy decoding would say it.

        Tokens are chosen for the prompt alone, as in `generate`: the continuation is read in a second pass.
        """
        inputs = self.prepare([sample])
        said = self._continuation_ids(sample, inputs["input_ids"], continuation)
        self._ask([sample])
        with torch.no_grad():
            first = self.model(**inputs, use_cache=True)
            logits = first.logits[:, -1:]
            if said.shape[1] > 1:
                mask = torch.cat([inputs["attention_mask"], torch.ones_like(said[:, :-1])], dim=1)
                more = {"past_key_values": first.past_key_values, "attention_mask": mask}
                logits = torch.cat([logits, self.model(input_ids=said[:, :-1], **more).logits], dim=1)
        chances = logits.float().log_softmax(dim=-1)
        total = chances.gather(2, said[..., None]).sum().item()
        return total, bool((chances.argmax(dim=-1) == said).all())

    def prepare(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """The model's inputs for some samples, padded on the left."""
        given = self._visuals(samples)
        texts = [self.render(sample) for sample in samples]
        options: dict[str, Any] = {"padding": True, "padding_side": "left", "return_tensors": "pt"}
        inputs = self.processor(text=texts, **given, **options).to(self.model.device)
        dtype = self.model.dtype
        return {name: value.to(dtype) if name.startswith("pixel_values") else value for name, value in inputs.items()}

    def render(self, sample: Sample) -> str:
        """The prompt, by the processor's chat template or else LLaVA-1.5's."""
        if getattr(self.processor, "chat_template", None):
            turns = [{**turn, "content": [self._part(part) for part in turn["content"]]} for turn in sample.turns]
            return str(self.processor.apply_chat_template(turns, add_generation_prompt=True, tokenize=False))
        kinds = [part["type"] for turn in sample.turns for part in turn["content"] if part["type"] != "text"]
        words = [part["text"] for part in sample.turns[-1]["content"] if part["type"] == "text"]
        shown = "".join(self._placeholder(kind) for kind in kinds)
        return FALLBACK_PROMPT.format(placeholder=shown, question=" ".join(words))

    def _part(self, part: Mapping[str, str]) -> dict[str, str]:
        """A part of a turn; a word that stands for an image is no word of a question."""
        if part["type"] != "text":
            return dict(part)
        text = part["text"]
        for kind in ("image", "video"):
            text = text.replace(self._placeholder(kind), "")
        return {"type": "text", "text": text}

    def _placeholder(self, kind: str) -> str:
        return str(getattr(self.processor, f"{kind}_token", None) or f"<{kind}>")

    def _visuals(self, samples: Sequence[Sample]) -> dict[str, Any]:
        """The processor's arguments for the images and videos of some samples."""
        given: dict[str, Any] = {}
        if any(sample.images for sample in samples):
            from vlprune.evaluation.questions import resize_to

            given["images"] = [
                [resize_to(image.convert("RGB"), self.resolution) for image in sample.images] for sample in samples
            ]
        if any(sample.videos for sample in samples):
            import numpy as np

            from vlprune.media.video import read_clip

            if getattr(self.processor, "video_processor", None) is None:
                raise UserError(f"pretrained={self.loaded.name}: it takes no videos.")
            clips = [read_clip(path, self.frames) for sample in samples for path in sample.videos]
            given["videos"] = [np.stack(clip.frames) for clip in clips]
            given |= {"video_metadata": [clip.metadata for clip in clips], "do_sample_frames": False}
        return given

    def _ask(self, samples: Sequence[Sample]) -> None:
        """Tell the pruner the questions."""
        if self.pruner is not None:
            shown = any(sample.images or sample.videos for sample in samples)
            self.pruner.query = [sample.question for sample in samples] if shown else None

    def _entering(self, row: int) -> int | None:
        """The visual tokens of a row that entered the LLM; None without a pruner."""
        if self.pruner is None:
            return None
        return count_tokens([record for record in self.pruner.records if record.row == row]).entering

    def _continuation_ids(self, sample: Sample, prompt: torch.Tensor, continuation: str) -> torch.Tensor:
        """The token ids (1, l) that a continuation adds to the prompt's."""
        tokenizer = getattr(self.processor, "tokenizer", self.processor)
        before = tokenizer(self.render(sample), add_special_tokens=False)["input_ids"]
        both = tokenizer(self.render(sample) + continuation, add_special_tokens=False)["input_ids"]
        ids = both[len(before) :] if both[: len(before)] == before else []
        ids = ids or tokenizer(continuation, add_special_tokens=False)["input_ids"]
        if not ids:
            raise ValueError(f"continuation={continuation!r}: it has no tokens.")
        return torch.tensor([ids], device=prompt.device)

    def _generate_options(self, told: Mapping[str, Any]) -> dict[str, Any]:
        """A task's `generation_kwargs` as `generate` takes them; greedy unless the task says do_sample or heat."""
        options = {name: told[name] for name in PASSED_ON if told.get(name) is not None}
        options.setdefault("max_new_tokens", USUAL_NEW_TOKENS)
        options["do_sample"] = bool(told.get("do_sample", (told.get("temperature") or 0) > 0))
        for name in ("temperature", "top_p", "top_k"):
            if options["do_sample"] and told.get(name) is not None:
                options[name] = told[name]
        pad = getattr(getattr(self.processor, "tokenizer", self.processor), "pad_token_id", None)
        return options if pad is None else {**options, "pad_token_id": pad}


def _cut(text: str, until: str | Sequence[str] | None) -> str:
    """The answer up to the first of some words at which it ends.

    >>> _cut(" a cat ASSISTANT: no", ["ASSISTANT:"])
    'a cat'
    """
    for word in [until] if isinstance(until, str) else until or []:
        text = text.partition(word)[0] if word else text
    return text.strip()


def _end_ids(model: Any) -> set[int]:
    ends = model.generation_config.eos_token_id
    return set(ends if isinstance(ends, list) else [] if ends is None else [ends])


def _length(ids: Sequence[int], ends: set[int]) -> int:
    """How many tokens were generated, the end included."""
    return next((i + 1 for i, token in enumerate(ids) if token in ends), len(ids))

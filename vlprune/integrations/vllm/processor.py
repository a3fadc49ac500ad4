"""The front end: finds a request's question, hashes it with the image, and counts the tokens that will be left."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, ClassVar

import torch
from torch import Tensor

from vlprune.budget import Budget
from vlprune.integrations.vllm.families import ServedFamily
from vlprune.integrations.vllm.metrics import count_tokens
from vlprune.integrations.vllm.request import PruneRequest, requested_keep, split_kwargs
from vlprune.integrations.vllm.settings import KEY, Settings, write_keep
from vlprune.pruning.chat_template import user_turn_marks
from vlprune.pruning.question import last_user_turn
from vlprune.types import Shape

#: The field of an item that carries its request, by modality.
FIELD = "vlprune_{}"
#: The attribute of a shortened placeholder that says how many visual tokens it had.
BEFORE = "vlprune_before"
#: The question of the prompts that vLLM makes up to see how much memory it needs.
DUMMY = {"query": "what"}
#: What such a request has in place of an image's name.
PROFILE = "profile"


class PrunedInfo:
    """Before a model's own `ProcessingInfo`: lets vLLM count the tokens of a dummy prompt, which are those left."""

    def get_mm_max_tokens_per_item(self, seq_len: int, mm_counts: Mapping[str, int]) -> None:
        return None


class PrunedProcessor:
    """Before a model's own multi-modal processor. Keeps nothing of a request on itself: several threads use it."""

    served: ClassVar[ServedFamily]
    info: Any

    @cached_property
    def settings(self) -> Settings:
        return Settings.from_dict(getattr(self.info.get_hf_config(), KEY, None))

    # --- the request ---

    def get_dummy_inputs(self, *args: Any, **kwargs: Any) -> Any:
        """vLLM's own dummy prompt, which has no words, with a question."""
        inputs = super().get_dummy_inputs(*args, **kwargs)  # type: ignore[misc]
        return replace(inputs, hf_processor_mm_kwargs={KEY: DUMMY})

    def apply(self, inputs: Any, timing_ctx: Any) -> Any:
        """vLLM's own, with what is asked of the images put where vLLM hashes it."""
        plain, ours = split_kwargs(inputs.hf_processor_mm_kwargs)
        if inputs.mm_data_items:
            request = self._request(inputs.prompt, ours)
            dummy = inputs.hf_processor_mm_kwargs.get(KEY) is DUMMY
            plain[KEY] = replace(request, image=PROFILE if dummy else "").to_json()
        return super().apply(replace(inputs, hf_processor_mm_kwargs=plain), timing_ctx)  # type: ignore[misc]

    def _request(self, prompt: list[int], ours: dict[str, Any]) -> PruneRequest:
        settings = self.settings
        request = PruneRequest(requested_keep(ours, settings.method.keep), method=repr(settings.method))
        if not settings.method.reads_question or Budget.of(request.budget).ratio == 1.0:
            return request
        text = ours.get("query")
        if text is not None and not isinstance(text, str):
            raise ValueError(f"query={text!r}: pass the question's text.")
        text = self._question(prompt) if text is None else text
        if not text.strip():
            raise ValueError(
                f'no question was found in the prompt: pass mm_processor_kwargs {{"{KEY}": {{"query": …}}}}.'
            )
        if settings.reads_text:
            return replace(request, text=text)
        return replace(request, ids=tuple(self._tokenizer(text, add_special_tokens=False)["input_ids"]))

    @property
    def _tokenizer(self) -> Any:
        return self.info.get_tokenizer()

    def _question(self, prompt: list[int]) -> str:
        """The last user turn of a prompt, whose images are one placeholder each."""
        text, found = last_user_turn(list(prompt), self._tokenizer, self._placeholders, self._turn_marks)
        if not found:
            warnings.warn(
                "vlprune: the chat template's user turn was not found in a prompt; the text after the last image is "
                f'taken as the question (mm_processor_kwargs {{"{KEY}": {{"query": …}}}} says it).',
                stacklevel=2,
            )
        return text

    @cached_property
    def _turn_marks(self) -> tuple[str, str] | None:
        return user_turn_marks(self.info.get_hf_processor())

    @cached_property
    def _placeholders(self) -> set[int]:
        config = self.info.get_hf_config()
        names = ("image_token_id", "image_token_index", "video_token_id", "video_token_index")
        return {token for name in names if isinstance(token := getattr(config, name, None), int)}

    # --- what vLLM asks of a processor ---

    def _apply_hf_processor_main(self, mm_items: Any, hf_kwargs: Mapping[str, object]) -> Any:
        """The model's own tensors, and the request of each item as one more."""
        from vllm.multimodal.inputs import MultiModalKwargsItems

        plain, request = _split_request(hf_kwargs)
        processed = super()._apply_hf_processor_main(mm_items, plain)  # type: ignore[misc]
        if request is not None:
            fields = super()._get_mm_fields_config(processed, plain)  # type: ignore[misc]
            for modality, items in MultiModalKwargsItems.from_hf_inputs(processed, fields).items():
                profile = request.image == PROFILE  # all of these are one image, which must not be encoded just once
                names = ["" if profile else _name_of(item.get_data()) for item in items]
                processed[FIELD.format(modality)] = [request.to_tensor(name) for name in names]
        return processed

    def _get_mm_fields_config(self, hf_inputs: Any, hf_processor_mm_kwargs: Mapping[str, object]) -> Any:
        from vllm.multimodal.inputs import MultiModalFieldConfig

        plain, _ = _split_request(hf_processor_mm_kwargs)
        fields = dict(super()._get_mm_fields_config(hf_inputs, plain))  # type: ignore[misc]
        for modality in ("image", "video"):
            if FIELD.format(modality) in hf_inputs:
                fields[FIELD.format(modality)] = MultiModalFieldConfig.batched(modality, keep_on_cpu=True)
        return fields

    def _get_mm_prompt_updates(self, mm_items: Any, hf_processor_mm_kwargs: Any, out_mm_kwargs: Any) -> Any:
        """The model's own placeholders, less those of tokens that will be dropped."""
        plain, request = _split_request(hf_processor_mm_kwargs)
        updates = super()._get_mm_prompt_updates(mm_items, plain, out_mm_kwargs)  # type: ignore[misc]
        if request is None:
            return updates
        return {
            modality: [
                [self._shortened(request, modality, out_mm_kwargs[modality][i].get_data(), one) for one in several]
                for i, several in enumerate(items)
            ]
            for modality, items in updates.items()
        }

    def _shortened(self, request: PruneRequest, modality: str, item: dict[str, Any], update: Any) -> Any:
        from vllm.multimodal.processing.processor import PromptUpdateDetails

        content = update.content
        if any(name.endswith("_embeds") for name in item):
            raise ValueError(f"{modality}_embeds: vlprune prunes what the model's own tower encodes; pass pixels.")
        mask = torch.ones(len(content.full)) if content.is_embed is None else content.is_embed(content.full)
        runs = int(torch.nn.functional.pad(mask.int(), (1, 0)).diff().clamp(min=0).sum())
        shapes = self.served.shapes(self.info.get_hf_config(), modality, item, int(mask.sum()))
        kept = self._kept(request.budget, shapes, runs)
        allowed = self._kept(self.settings.method.keep, shapes, runs)
        if sum(kept) > sum(allowed):
            raise ValueError(
                f"keep={request.keep}: {sum(kept)} tokens of this {modality}, but the engine was started for at most "
                f"{sum(allowed)}."
            )
        short = PromptUpdateDetails(_shorten_runs(content.full, mask.bool().tolist(), kept), content.is_embed)
        if request.image != PROFILE:
            object.__setattr__(short, BEFORE, int(mask.sum()))
        return replace(update, content=short)

    def _maybe_apply_prompt_updates(self, mm_items: Any, mm_res: Any) -> Any:
        """vLLM's own; and counts the tokens of all items, also of those that come from its cache."""
        prompt_ids, placeholders = super()._maybe_apply_prompt_updates(mm_items, mm_res)  # type: ignore[misc]
        for modality, items in mm_res.prompt_updates.items():
            for (update, *_), place in zip(items, placeholders.get(modality, [])):
                before = getattr(update.content, BEFORE, None)
                if before is not None:
                    count_tokens(modality, before, place.to_range().get_num_embeds())
        return prompt_ids, placeholders

    def _kept(self, keep: Any, shapes: list[Shape], runs: int) -> list[int]:
        """How many tokens are left of each run of placeholders: of each image, or of each frame that stands apart."""
        variable, budget = self.served.family.variable_length, Budget.of(keep)
        left = []
        for shape in shapes:
            shares = budget.shares(shape.kind, [len(part) for part in shape.parts], variable)
            if len(shapes) == runs:
                left.append((shares if isinstance(shares, int) else sum(shares)) + shape.structure)
            elif isinstance(shares, int):
                raise ValueError(
                    f"keep={write_keep(keep)}: the frames of this model's videos stand apart in the prompt, so each "
                    'needs a number of its own; pass keep={"per_frame": …}.'
                )
            else:
                left += shares
        return left


def _shorten_runs(tokens: list[int], visual: list[bool], kept: list[int]) -> list[int]:
    """The tokens with as many visual ones left in each run of them as `kept` says.

    >>> _shorten_runs([1, 9, 9, 9, 2, 9, 9, 9], [False, True, True, True, False, True, True, True], [2, 1])
    [1, 9, 9, 2, 9]
    """
    left, run, short = 0, -1, []
    for i, token in enumerate(tokens):
        if visual[i]:
            if i == 0 or not visual[i - 1]:
                run += 1
                left = kept[run]
            left -= 1
            if left < 0:
                continue
        short.append(token)
    assert run + 1 == len(kept), f"{run + 1} runs of placeholders, but {len(kept)} images"
    return short


def _split_request(given: Mapping[str, object]) -> tuple[dict[str, object], PruneRequest | None]:
    """vLLM's processor arguments without ours, and ours."""
    text = given.get(KEY)
    plain = {name: value for name, value in given.items() if name != KEY}
    return plain, None if text is None else PruneRequest.from_json(str(text))


def _name_of(item: Mapping[str, Any]) -> str:
    """A name for an item's content."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(item):
        value = item[name]
        digest.update(name.encode())
        if isinstance(value, Tensor):
            flat = value.detach().cpu().contiguous()
            digest.update(str((flat.shape, flat.dtype)).encode())
            digest.update(flat.flatten().view(torch.uint8).numpy().data)
        else:
            digest.update(repr(value).encode())
    return digest.hexdigest()

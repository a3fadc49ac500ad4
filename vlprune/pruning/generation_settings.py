"""What `generate` is told about a prompt's length, for a prompt that has become shorter."""

import copy
from typing import Any

import torch
from torch import Tensor


class PromptStreamer:
    """Shows a streamer the prompt as the user wrote it, then passes the new tokens on."""

    def __init__(self, streamer: Any, prompt: Tensor) -> None:
        self._streamer = streamer
        self._prompt: Tensor | None = prompt

    def put(self, value: Tensor) -> None:
        self._streamer.put(value if self._prompt is None else self._prompt.cpu())
        self._prompt = None

    def end(self) -> None:
        self._streamer.end()


def generation_setting(model: Any, kwargs: dict[str, Any], name: str) -> Any:
    """A generation setting as `generate(**kwargs)` will see it: the argument, else its config, else the model's."""
    for value in (kwargs.get(name), getattr(kwargs.get("generation_config"), name, None)):
        if value is not None:
            return value
    return getattr(model.generation_config, name, None)


def shift_lengths(model: Any, kwargs: dict[str, Any], shift: int) -> dict[str, Any]:
    """The arguments of a `generate` call that change when its prompt becomes longer by `shift` (negative: shorter).

    `max_length` and `min_length` count the prompt, wherever they were said.
    """
    changed: dict[str, Any] = {}
    for name, new_tokens in (("max_length", "max_new_tokens"), ("min_length", "min_new_tokens")):
        value = generation_setting(model, kwargs, name)
        if not shift or not value or generation_setting(model, kwargs, new_tokens) is not None:
            continue
        config = kwargs.get("generation_config")
        if config is not None and kwargs.get(name) is None:
            changed.setdefault("generation_config", copy.deepcopy(config))
            setattr(changed["generation_config"], name, max(0, value + shift))
        else:
            changed[name] = max(0, value + shift)
    return changed


def longest_text(model: Any, kwargs: dict[str, Any], prompt: int) -> int | None:
    """The most tokens that a `generate` call with a prompt of so many may come to; None where it is not said."""
    new = generation_setting(model, kwargs, "max_new_tokens")
    longest = generation_setting(model, kwargs, "max_length") if new is None else prompt + new
    return longest if isinstance(longest, int) else None


def padding_mask(model: Any, kwargs: dict[str, Any], ids: Tensor) -> Tensor:
    """The mask that transformers infers: padding is what equals the pad token, unless that also ends a text."""
    pad, eos = (generation_setting(model, kwargs, name) for name in ("pad_token_id", "eos_token_id"))
    ends = eos if isinstance(eos, (list, tuple)) else [eos]
    return torch.ones_like(ids) if pad is None or pad in ends else (ids != pad).long()


def cache_length(cache: Any) -> int:
    """How many tokens a cache holds; 0 for none."""
    return int(cache.get_seq_length()) if cache is not None else 0


def required_token_ids(kwargs: dict[str, Any]) -> Tensor:
    """The `input_ids` of a call with images, which it must have."""
    ids = kwargs.get("input_ids")
    if not isinstance(ids, Tensor) or kwargs.get("inputs_embeds") is not None:
        raise ValueError("input_ids must be passed with the images, and not inputs_embeds, for tokens to be dropped.")
    return ids

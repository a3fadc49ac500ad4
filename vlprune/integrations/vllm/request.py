"""What one request wants of its images: the budget and the question, on the way from the API to the workers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vlprune.integrations.vllm.settings import KEY, RATE, read_keep, write_keep


@dataclass(frozen=True)
class PruneRequest:
    """One image's budget and question; `image` names its pixels, for the workers' cache; `method` is the engine's.

    The question is `ids`, the LLM's tokens, or `text`, for a dual encoder; neither where none is read. `keep` is as in
    JSON. vLLM hashes all of this with the image, so another question is another entry of its caches, also of those that
    engines share.
    """

    keep: Any
    ids: tuple[int, ...] = ()
    text: str = ""
    image: str = ""
    method: str = ""

    def to_json(self) -> str:
        return json.dumps(asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> PruneRequest:
        """
        >>> request = PruneRequest(keep=64, ids=(7, 8))
        >>> PruneRequest.from_json(request.to_json()) == request
        True
        """
        given = json.loads(text)
        return cls(**{**given, "ids": tuple(given["ids"])})

    def to_tensor(self, image: str) -> Tensor:
        """The request for one image, as a tensor of bytes: what vLLM carries to the workers."""
        return torch.frombuffer(bytearray(replace(self, image=image).to_json().encode()), dtype=torch.uint8)

    @classmethod
    def from_tensor(cls, data: Tensor) -> PruneRequest:
        """
        >>> PruneRequest.from_tensor(PruneRequest(keep=0.5, text="wo ist es ?").to_tensor("x")).image
        'x'
        """
        return cls.from_json(bytes(data.cpu().tolist()).decode())

    @property
    def budget(self) -> Any:
        """The budget as a method takes it."""
        return read_keep({"keep": self.keep})


def split_kwargs(given: Mapping[str, object]) -> tuple[dict[str, object], dict[str, Any]]:
    """A request's `mm_processor_kwargs` as (those for the model's own processor, ours).

    >>> split_kwargs({"max_pixels": 9, "vlprune": {"keep": 8}})
    ({'max_pixels': 9}, {'keep': 8})
    >>> split_kwargs({"image_pruning_rate": 0.5})
    ({}, {'image_pruning_rate': 0.5})
    """
    ours = given.get(KEY, {})
    if not isinstance(ours, dict):
        raise ValueError(f'{KEY}={ours!r}: pass an object such as {{"keep": 64}}.')
    for name in ours:
        if name not in ("keep", "query", RATE):
            raise ValueError(f"{KEY}.{name}={ours[name]!r}: a request may set keep, {RATE} and query.")
    if RATE in given:
        ours = {**ours, RATE: given[RATE]}
    return {name: value for name, value in given.items() if name not in (KEY, RATE)}, dict(ours)


def requested_keep(ours: dict[str, Any], default: Any) -> Any:
    """The budget that a request asks for, as JSON; the engine's own `default` where it asks for none."""
    keep = read_keep(ours)
    return write_keep(default if keep is None else keep)

"""What a vision tower looks at, without asking it for attention weights: one layer's queries and keys, again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

ROWS = 512  #: queries whose attention is held at a time


@dataclass
class RecordedCall:
    """The arguments of a watched module's most recent call."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def hidden(self) -> Tensor:
        """Its hidden states."""
        return self.args[0] if self.args else self.kwargs["hidden_states"]


@dataclass(frozen=True)
class TowerAttention:
    """`attention` (images, patches), `keys` (images, patches, d_k) and, where there is one, `cls` (images, d_v)."""

    attention: Tensor
    keys: Tensor
    cls: Tensor | None = None


@contextmanager
def recorded_call(module: Any) -> Iterator[RecordedCall | None]:
    """Inside, note how `module` is called; None for no module."""
    if module is None:
        yield None
        return
    call = RecordedCall()

    def note(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call.args, call.kwargs = args, kwargs

    handle = module.register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield call
    finally:
        handle.remove()


@torch.no_grad()
def received(queries: Tensor, keys: Tensor, cls: bool) -> Tensor:
    """The attention that each token receives, mean over heads: (N, L), or (N, L − 1) from the class token in front.

    Queries and keys are (N, heads, L, d). Without a class token: the mean over all queries.

    >>> keys = torch.tensor([[[[0.0], [1.0], [3.0]]]])
    >>> received(torch.ones(1, 1, 3, 1), keys, cls=True).argmax().item()   # of the two behind the class token
    1
    """
    keys, scale = keys.float(), queries.shape[-1] ** -0.5
    if cls:
        weights = (queries[:, :, :1].float() * scale @ keys.mT).softmax(dim=-1)
        return weights.mean(dim=1)[:, 0, 1:]
    total = keys.new_zeros(keys.shape[0], keys.shape[2])
    for rows in queries.split(ROWS, dim=2):
        total += (rows.float() * scale @ keys.mT).softmax(dim=-1).mean(dim=1).sum(dim=1)
    return total / queries.shape[2]


@torch.no_grad()
def projected(module: Any, hidden: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys (N, heads, L, d) of an attention module with `q_proj` and `k_proj`, and norms if it has them."""

    def heads(project: Any, norm: Any) -> Tensor:
        values = project(hidden)
        values = values if norm is None else norm(values)
        return values.view(*values.shape[:2], module.num_heads, -1).transpose(1, 2)

    return (
        heads(module.q_proj, getattr(module, "q_norm", None)),
        heads(module.k_proj, getattr(module, "k_norm", None)),
    )


@torch.no_grad()
def project_and_attend(module: Any, hidden: Tensor, cls: Tensor | None) -> TowerAttention:
    """Of a tower with separate projections; `cls` (N, d_v) is the class token's state, None for a tower without one."""
    queries, keys = projected(module, hidden)
    first = 0 if cls is None else 1
    return TowerAttention(received(queries, keys, cls is not None), keys[:, :, first:].float().mean(dim=1), cls)

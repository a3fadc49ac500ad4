"""Attention inside a vision tower, computed again from the queries and keys of one layer.

So the tower runs with any attention implementation: it is not asked for attention weights.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

ROWS = 512  #: queries whose attention is held at a time
#: What the projections of queries and keys are called.
PROJECTIONS = (("q_proj", "k_proj"), ("query", "key"))
#: Arguments of modules whose attention follows from queries and keys alone: no rotary or relative positions.
PLAIN_ARGUMENTS = {"hidden_states", "attention_mask", "head_mask", "output_attentions", "is_causal", "args", "kwargs"}


@dataclass
class RecordedCall:
    """The arguments of a module's most recent call."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)

    @property
    def hidden_states(self) -> Tensor:
        """The hidden states that the module was called with."""
        return self.args[0] if self.args else self.kwargs["hidden_states"]


@dataclass(frozen=True)
class TowerAttention:
    """Attention of one layer of a vision tower.

    `attention` (images, patches) is what each patch received and `keys` (images, patches, d_k) are the layer's keys,
    both averaged over heads; `cls` (images, d_v) is the class token's hidden state, None without a class token.
    """

    attention: Tensor
    keys: Tensor
    cls: Tensor | None = None


@contextmanager
def record_call(module: Any) -> Iterator[RecordedCall | None]:
    """Record, inside the `with` block, the arguments that `module` is called with; None records nothing.

    Only calls of this thread: models of other threads may share the module.
    """
    if module is None:
        yield None
        return
    call, thread = RecordedCall(), threading.get_ident()

    def record(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if threading.get_ident() == thread:
            call.args, call.kwargs = args, kwargs

    handle = module.register_forward_pre_hook(record, with_kwargs=True)
    try:
        yield call
    finally:
        handle.remove()


@torch.no_grad()
def attention_received(queries: Tensor, keys: Tensor, cls: bool) -> Tensor:
    """Attention that each token receives, averaged over heads: (N, L), or (N, L − 1) from the class token in front.

    Queries and keys are (N, heads, L, d). Without a class token it is averaged over all queries.

    >>> keys = torch.tensor([[[[0.0], [1.0], [3.0]]]])
    >>> attention_received(torch.ones(1, 1, 3, 1), keys, cls=True).argmax().item()   # of the two behind the class token
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


def attention_modules(tower: Any) -> list[Any]:
    """The attention modules of a vision tower's layers, in order; empty where their attention cannot be computed again.

    That is so where positions enter into the attention itself, or where queries and keys have no projections of their
    own.
    """
    found = [
        module
        for module in tower.modules()
        if _projections(module) is not None and set(inspect.signature(module.forward).parameters) <= PLAIN_ARGUMENTS
    ]
    return found if len(found) == getattr(tower.config, "num_hidden_layers", None) else []


def _projections(module: Any) -> tuple[Any, Any] | None:
    """The projections of queries and of keys; None where the module has none."""
    for names in PROJECTIONS:
        both = tuple(getattr(module, name, None) for name in names)
        if all(isinstance(one, torch.nn.Module) for one in both):
            return both[0], both[1]
    return None


@torch.no_grad()
def queries_and_keys(module: Any, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys (N, heads, L, d) of an attention module with a projection for each, and norms if it has them."""
    projections = _projections(module)
    assert projections is not None
    heads = next(getattr(module, name) for name in ("num_heads", "num_attention_heads") if hasattr(module, name))

    def by_head(project: Any, norm: Any) -> Tensor:
        values = project(hidden_states)
        values = values if norm is None else norm(values)
        return values.view(*values.shape[:2], heads, -1).transpose(1, 2)

    return (
        by_head(projections[0], getattr(module, "q_norm", None)),
        by_head(projections[1], getattr(module, "k_norm", None)),
    )


@torch.no_grad()
def attention_of_module(module: Any, hidden_states: Tensor, leading: int, cls: Tensor | None = None) -> TowerAttention:
    """Attention that the patches received in a call of the module with these hidden states (N, L, d_v).

    `leading` tokens come before the patches: the class token, whose attention it is, then registers. Without any, it
    is the attention from all patches. `cls` (N, d_v) is the class token's state after the layer, for a model that does
    not show it to the LLM.
    """
    queries, keys = queries_and_keys(module, hidden_states)
    received = attention_received(queries, keys, cls=leading > 0)
    return TowerAttention(received[:, max(leading - 1, 0) :], keys[:, :, leading:].float().mean(dim=1), cls)

"""What methods may ask of the vision tower: its states before the projector, and the attention of its last layer.

Nothing is computed twice: what the projector, and vLLM's attention, are called with is noted on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor

from vlprune.integrations.vllm.families import Item, ServedFamily
from vlprune.integrations.vllm.settings import Settings
from vlprune.models.tower_attention import RecordedCall, attention_received
from vlprune.pruning.patched_attributes import patched_attributes
from vlprune.types import Shape


@dataclass
class Recorded(RecordedCall):
    """The arguments of a module's most recent call, and what it returned."""

    output: Any = None


@contextmanager
def _recorded(module: Any) -> Iterator[Recorded]:
    """Record a module's calls by its `forward`: vLLM calls some modules past their hooks."""
    call, forward = Recorded(), module.forward

    def recording(*args: Any, **kwargs: Any) -> Any:
        call.args, call.kwargs, call.output = args, kwargs, forward(*args, **kwargs)
        return call.output

    with patched_attributes(module, {"forward": recording}):
        yield call


@dataclass
class TowerCalls:
    """What was noted in one run of the tower."""

    projector: Recorded | None = None
    layer: Recorded | None = None
    attention: Recorded | None = None


class TowerReader:
    """Reads the tower of one model for one method; reads nothing for a method that needs nothing of it."""

    def __init__(self, model: Any, served: ServedFamily, settings: Settings) -> None:
        self._model, self._served = model, served
        self._attention = settings.method.needs_attention
        self._states = self._attention or settings.reads_text or settings.method.merges

    def recording(self, stack: ExitStack) -> TowerCalls:
        """Until the stack closes, note what the tower does."""
        calls = TowerCalls()
        if self._states:
            calls.projector = stack.enter_context(_recorded(attrgetter(self._served.projector)(self._model)))
        if self._attention:
            layer = attrgetter(self._served.tower_layers)(self._model)[-1]
            calls.layer = stack.enter_context(_recorded(layer))
            calls.attention = stack.enter_context(_recorded(attrgetter(self._served.layer_attention)(layer)))
        return calls

    def read(self, calls: TowerCalls, modality: str, items: list[Item], shapes: list[Shape]) -> list[dict[str, Any]]:
        """Of each image: `tower`, `attention`, `keys` and `cls` as in `EncodedImage`, as far as they are asked for."""
        found: list[dict[str, Any]] = [{} for _ in shapes]
        if calls.projector is None:
            return found

        def arrange(values: Tensor) -> list[Tensor]:
            return list(self._served.arrange_states(self._model, modality, values, items, shapes))

        states = calls.projector.hidden_states
        for one, part in zip(found, arrange(states)):
            one["tower"] = part
        if calls.attention is not None:
            attention, keys = self._received(calls.attention)
            values = torch.cat([attention[..., None], keys], dim=-1)
            values = self._served.shuffle(self._model, values)
            width = keys.shape[-1] + 1
            for one, part in zip(found, arrange(values)):
                grouped = part.view(len(part), -1, width).mean(dim=1)  # a token of several patches has their mean
                one["attention"], one["keys"] = grouped[:, 0], grouped[:, 1:]
            counts = [len(shape.parts) for shape in shapes]
            cls = calls.layer.output[:, 0] if calls.layer and self._served.has_class_token(self._model.config) else None
            if cls is not None and sum(counts) == len(cls):
                for one, part in zip(found, cls.split(counts)):
                    one["cls"] = part
        return found

    def _received(self, call: RecordedCall) -> tuple[Tensor, Tensor]:
        """Attention that each patch received (N, patches) and its keys (N, patches, d), means over all heads."""
        module = attrgetter(self._served.layer_attention)(attrgetter(self._served.tower_layers)(self._model)[-1])
        named = dict(zip(("query", "key"), call.args)) | call.kwargs
        queries, keys = (named[name] for name in ("query", "key"))
        queries, keys = (one.reshape(*one.shape[:2], module.num_heads, -1).transpose(1, 2) for one in (queries, keys))
        segments = call.kwargs.get("cu_seqlens")
        if segments is None:
            leading = self._served.leading_tokens(self._model.config)
            attention = attention_received(queries, keys, cls=bool(leading))
            keys = keys[:, :, leading:]
        else:
            lengths = segments.diff().tolist()
            parts = zip(queries.split(lengths, dim=2), keys.split(lengths, dim=2))
            attention = torch.cat([attention_received(q, k, cls=False) for q, k in parts], dim=1)
        return _mean_of_workers(attention), _mean_of_workers(keys.float().mean(dim=1))


def _mean_of_workers(values: Tensor) -> Tensor:
    """The mean over tensor-parallel workers, each of which has its own heads."""
    from vllm.distributed import get_tensor_model_parallel_world_size, tensor_model_parallel_all_reduce

    size = get_tensor_model_parallel_world_size()
    return values if size == 1 else tensor_model_parallel_all_reduce(values.contiguous()) / size

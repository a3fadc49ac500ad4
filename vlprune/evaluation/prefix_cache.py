"""Decoder layers that remember what lies before the question.

A prompt shows its image and then asks. A causal decoder's states up to the image's last token do not depend on what is
asked, as long as the choice of tokens does not: then they are computed once for all questions about the image, and each
question sends only its own tokens through the layers. Hooks before the layers see whole sequences as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vlprune.methods.in_llm import InLLMMethod, split_stages
from vlprune.pruning.patched_attributes import patched_attributes

if TYPE_CHECKING:
    from vlprune.methods import Method
    from vlprune.pruner import Pruner

LIMIT = 2**30  # bytes of a memory

#: What layers are called with that can be cut; others may be there if they are no tensors.
KNOWN = ("attention_mask", "position_ids", "position_embeddings", "past_key_values")


@dataclass(frozen=True)
class Front:
    """What one layer made of the tokens before a question: its output (P, d), its keys and values (heads, P, d_h)."""

    output: Tensor
    keys: Tensor
    values: Tensor

    @property
    def nbytes(self) -> int:
        return self.output.nbytes + self.keys.nbytes + self.values.nbytes


class Memory(dict[Hashable, Front]):
    """Fronts by name, up to `limit` bytes; what comes when it is full is not kept.

    >>> memory, one = Memory(limit=30), Front(*torch.zeros(3, 2))
    >>> memory.note({"a": one}), memory.note({"b": one})
    (None, None)
    >>> list(memory), memory.nbytes
    (['a'], 24)
    """

    def __init__(self, limit: int = LIMIT) -> None:
        super().__init__()
        self.limit, self.nbytes = limit, 0

    def note(self, fronts: dict[Hashable, Front]) -> None:
        """Keep all of these, which are views of a batch, or none of them."""
        size = sum(front.nbytes for front in fronts.values())
        if self.nbytes + size <= self.limit:
            self.update(fronts)
            self.nbytes += size


def memory_for(method: Method, everything: Memory) -> Memory | None:
    """The memory to use for a method: None if it reads the question, `everything` if all tokens enter the LLM."""
    from vlprune.evaluation.accuracy import whole

    first, _ = split_stages(method)
    if isinstance(first, InLLMMethod) or first == whole():
        return everything
    return None if first.needs_query else Memory()


def names(images: Sequence[str], ids: Tensor, placeholders: set[int]) -> tuple[list[Hashable], int]:
    """What the tokens up to each row's last image are known by, and how many lie behind: 0 if that differs.

    >>> names(["a", "a"], torch.tensor([[1, 9, 9, 4], [1, 9, 9, 5]]), {9})[1]
    1
    """
    ids = ids.cpu()
    shown = torch.isin(ids, torch.tensor(sorted(placeholders)))
    last = {int(row.nonzero()[-1]) if row.any() else ids.shape[1] - 1 for row in shown}
    stop = last.pop() + 1
    if last:
        return [], 0
    return [(image, row.numpy().tobytes()) for image, row in zip(images, ids[:, :stop])], ids.shape[1] - stop


@contextmanager
def remembering(pruner: Pruner, memory: Memory | None, images: Sequence[str], ids: Tensor) -> Iterator[None]:
    """Inside, `generate` computes what it reads, and that once. Its prompts have these ids, images and no padding.

    The layers before the pruner's first cut take what lies before the question from `memory`, or note it there. The
    last layer computes only the last token, as no other one is read.
    """
    decoder = pruner.model.get_decoder()
    layers = list(getattr(decoder, "layers", []))
    until = len(layers) if pruner.first_cut is None else pruner.first_cut
    plain = decoder.config._attn_implementation == "sdpa"  # for which no mask is a causal one
    rows, behind = names(images, ids, pruner.placeholders)
    with ExitStack() as stack:
        for layer in layers[-1:]:
            stack.enter_context(patched_attributes(layer, {"forward": _last(layer)}))
        if memory is not None and plain and behind:
            for number, layer in enumerate(layers[:until]):
                stack.enter_context(
                    patched_attributes(layer, {"forward": _recalling(layer, number, rows, behind, memory)})
                )
        yield


def _recalling(layer: Any, number: int, rows: Sequence[Hashable], behind: int, memory: Memory) -> Callable[..., Any]:
    """A layer's forward that runs the tokens before the question once for each name."""
    plain = layer.forward

    def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        before = hidden_states.shape[1] - behind
        held = _empty(kwargs.get("past_key_values"), number)
        if args or before < 1 or held is None or len(rows) != len(hidden_states) or not _causal(layer, kwargs):
            return plain(hidden_states, *args, **kwargs)
        known: dict[Hashable, Front] = {}
        missing: dict[Hashable, int] = {}
        asked = [(number, before, name) for name in rows]
        for row, name in enumerate(asked):
            if name in memory:
                known[name] = memory[name]
            else:
                missing.setdefault(name, row)
        if missing:
            some, noted = list(missing.values()), _Noted()
            own = _cut(kwargs, slice(before), some) | {"past_key_values": noted}
            output = plain(hidden_states[some, :before], **own)
            new = {name: Front(*part) for name, part in zip(missing, zip(output, noted.keys, noted.values))}
            memory.note(new)
            known |= new
        fronts = [known[name] for name in asked]
        noted = _Noted(fronts)
        seen = torch.ones(behind, before + behind, dtype=torch.bool, device=hidden_states.device).tril(before)
        own = _cut(kwargs, slice(before, None)) | {"past_key_values": noted, "attention_mask": seen[None, None]}
        output = plain(hidden_states[:, before:], **own)
        held.lazy_initialization(noted.keys, noted.values)
        held.keys, held.values = noted.keys, noted.values
        return _behind([front.output for front in fronts], output)

    return forward


class _Noted:
    """Stands for the KV cache of one layer that holds `fronts`, and keeps what it is given."""

    keys: Tensor
    values: Tensor

    def __init__(self, fronts: Sequence[Front] = ()) -> None:
        self.fronts = fronts

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = keys, values
        if self.fronts:
            self.keys = _behind([front.keys for front in self.fronts], keys)
            self.values = _behind([front.values for front in self.fronts], values)
        return self.keys, self.values


def _behind(fronts: Sequence[Tensor], values: Tensor) -> Tensor:
    """(B, ..., P + T, d) `values` (B, ..., T, d) behind those of each row's front (..., P, d)."""
    before = fronts[0].shape[-2]
    both = values.new_empty(*values.shape[:-2], before + values.shape[-2], values.shape[-1])
    torch.stack(list(fronts), out=both[..., :before, :])
    both[..., before:, :] = values
    return both


def _empty(cache: Any, number: int) -> Any:
    """The cache's layer, if it is one that holds nothing yet and will hold everything; else None."""
    from transformers.cache_utils import DynamicLayer

    layers = getattr(cache, "layers", [])
    good = number < len(layers) and type(layers[number]) is DynamicLayer and layers[number].get_seq_length() == 0
    return layers[number] if good else None


def _causal(layer: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a layer is called with what can be cut, and each token sees all before it."""
    return (
        getattr(getattr(layer, "self_attn", None), "is_causal", False)
        and kwargs.get("attention_mask") is None
        and kwargs.get("position_embeddings") is not None
        and not any(isinstance(value, Tensor) for name, value in kwargs.items() if name not in KNOWN)
    )


def _cut(kwargs: dict[str, Any], columns: slice, rows: list[int] | None = None) -> dict[str, Any]:
    """A layer's arguments for some of its columns, and of its rows where they have positions of their own."""

    def some(values: Tensor, row: int, column: int) -> Tensor:
        if rows is not None and values.shape[row] > 1:
            values = values.index_select(row, torch.tensor(rows, device=values.device))
        start, stop, _ = columns.indices(values.shape[column])
        return values.narrow(column, start, stop - start)

    own: dict[str, Any] = {"position_embeddings": tuple(some(part, -3, -2) for part in kwargs["position_embeddings"])}
    if kwargs.get("position_ids") is not None:
        own["position_ids"] = some(kwargs["position_ids"], -2, -1)
    return kwargs | own


def _last(layer: Any) -> Callable[..., Any]:
    """A layer's forward that is right for the last token alone, and has every token's keys and values."""
    plain, attention, mlp = layer.forward, getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    modules = [getattr(attention, name) for name in ("q_proj", "o_proj") if hasattr(attention, name)]
    modules += [mlp] * hasattr(mlp, "down_proj")  # not a mixture of experts

    def only(module: Any) -> Callable[..., Any]:
        whole = module.forward

        def forward(states: Tensor) -> Tensor:
            return F.pad(whole(states[:, -1:]), (0, 0, states.shape[1] - 1, 0))

        return forward

    def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for module in modules if hidden_states.shape[1] > 1 else ():
                stack.enter_context(patched_attributes(module, {"forward": only(module)}))
            return plain(hidden_states, *args, **kwargs)

    return forward

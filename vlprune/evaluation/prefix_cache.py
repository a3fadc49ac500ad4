"""Decoder layers that compute the tokens before the question once for all questions about an image.

A prompt shows its image and then asks. A causal decoder's states up to the image's last token, the prefix, do not
depend on what is asked, as long as the choice of tokens does not: then they are computed once for all questions about
the image, and each question sends only its own tokens through the layers. Hooks before the layers see whole sequences
as ever.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vlprune.evaluation.reference_methods import keep_all_tokens
from vlprune.methods import Method
from vlprune.methods.in_llm import InLLMMethod, split_stages
from vlprune.pruner import Pruner
from vlprune.pruning.patched_attributes import patched_attributes

MAX_BYTES = 2**30  # of one cache

#: Tensors among a layer's arguments that can be split between prefix and question; with others a layer runs as it is.
KNOWN_ARGUMENTS = ("attention_mask", "position_ids", "position_embeddings", "past_key_values")


@dataclass(frozen=True)
class LayerPrefix:
    """What one layer made of a prefix of P tokens: its output (P, d), its keys and values (heads, P, d_h)."""

    output: Tensor
    keys: Tensor
    values: Tensor

    @property
    def nbytes(self) -> int:
        return self.output.nbytes + self.keys.nbytes + self.values.nbytes


class PrefixCache(dict[Hashable, LayerPrefix]):
    """Prefixes of layers by key, up to `limit` bytes; once it is full, no more are added.

    >>> cache, one = PrefixCache(limit=30), LayerPrefix(*torch.zeros(3, 2))
    >>> cache.add({"a": one}), cache.add({"b": one})
    (None, None)
    >>> list(cache), cache.nbytes
    (['a'], 24)
    """

    def __init__(self, limit: int = MAX_BYTES) -> None:
        super().__init__()
        self.limit, self.nbytes = limit, 0

    def add(self, prefixes: dict[Hashable, LayerPrefix]) -> None:
        """Keep all of these, which are views of one batch, or none of them."""
        size = sum(prefix.nbytes for prefix in prefixes.values())
        if self.nbytes + size <= self.limit:
            self.update(prefixes)
            self.nbytes += size


def prefix_cache_for(method: Method, all_tokens_cache: PrefixCache) -> PrefixCache | None:
    """The cache that a method can use: None if its choice depends on the question.

    Methods by which all tokens enter the LLM share `all_tokens_cache`; others get a cache of their own.
    """
    first, _ = split_stages(method)
    if isinstance(first, InLLMMethod) or first == keep_all_tokens():
        return all_tokens_cache
    return None if first.reads_question else PrefixCache()


def prefix_keys(images: Sequence[str], ids: Tensor, placeholders: set[int]) -> tuple[list[Hashable], int]:
    """Keys of the rows' prefixes (image and ids up to its last token), and how many tokens lie behind the prefix.

    No keys and 0 if rows have their images at different places.

    >>> prefix_keys(["a", "a"], torch.tensor([[1, 9, 9, 4], [1, 9, 9, 5]]), {9})[1]
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
def reuse_prefix(pruner: Pruner, cache: PrefixCache | None, images: Sequence[str], ids: Tensor) -> Iterator[None]:
    """Inside, `generate` takes the rows' prefixes from the cache, or adds them to it.

    Its prompts have these ids and images, and no padding. This is done in the layers before the pruner's first cut,
    and not at all if `cache` is None. In any case the last layer computes only the last token, as no other one is
    read.
    """
    decoder = pruner.model.get_decoder()
    layers = list(getattr(decoder, "layers", []))
    until = len(layers) if pruner.first_cut is None else pruner.first_cut
    plain = decoder.config._attn_implementation == "sdpa"  # for which no mask is a causal one
    keys, question_length = prefix_keys(images, ids, pruner.placeholders)
    with ExitStack() as stack:
        for layer in layers[-1:]:
            stack.enter_context(patched_attributes(layer, {"forward": _last_token_forward(layer)}))
        if cache is not None and plain and question_length:
            for number, layer in enumerate(layers[:until]):
                forward = _prefix_reusing_forward(layer, number, keys, question_length, cache)
                stack.enter_context(patched_attributes(layer, {"forward": forward}))
        yield


def _prefix_reusing_forward(
    layer: Any, number: int, row_keys: Sequence[Hashable], question_length: int, cache: PrefixCache
) -> Callable[..., Any]:
    """A layer's forward that runs each prefix once, and the questions behind them."""
    plain = layer.forward

    def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        length = hidden_states.shape[1] - question_length
        kv_cache = _empty_kv_layer(kwargs.get("past_key_values"), number)
        splittable = kv_cache is not None and len(row_keys) == len(hidden_states) and _can_split(layer, kwargs)
        if args or length < 1 or not splittable:
            return plain(hidden_states, *args, **kwargs)
        keys: list[Hashable] = [(number, length, key) for key in row_keys]
        missing: dict[Hashable, int] = {}
        for row, key in enumerate(keys):
            if key not in cache:
                missing.setdefault(key, row)
        known = {key: cache[key] for key in keys if key in cache}
        if missing:
            new = _run_prefixes(plain, hidden_states, kwargs, length, missing)
            cache.add(new)
            known |= new
        prefixes = [known[key] for key in keys]
        recorder = _KvRecorder(prefixes)
        seen = torch.ones(question_length, length + question_length, dtype=torch.bool, device=hidden_states.device)
        own = _slice_arguments(kwargs, slice(length, None))
        own |= {"past_key_values": recorder, "attention_mask": seen.tril(length)[None, None]}
        output = plain(hidden_states[:, length:], **own)
        kv_cache.lazy_initialization(recorder.keys, recorder.values)
        kv_cache.keys, kv_cache.values = recorder.keys, recorder.values
        return _behind_prefixes([prefix.output for prefix in prefixes], output)

    return forward


def _run_prefixes(
    forward: Callable[..., Any],
    hidden_states: Tensor,
    kwargs: dict[str, Any],
    length: int,
    row_of_key: dict[Hashable, int],
) -> dict[Hashable, LayerPrefix]:
    """Run the first `length` tokens of some rows through a layer: its prefix for each key."""
    rows, recorder = list(row_of_key.values()), _KvRecorder()
    own = _slice_arguments(kwargs, slice(length), rows) | {"past_key_values": recorder}
    output = forward(hidden_states[rows, :length], **own)
    return {key: LayerPrefix(*part) for key, part in zip(row_of_key, zip(output, recorder.keys, recorder.values))}


class _KvRecorder:
    """In place of a layer's KV cache: holds the keys and values of prefixes, and records those that are added."""

    keys: Tensor
    values: Tensor

    def __init__(self, prefixes: Sequence[LayerPrefix] = ()) -> None:
        self.prefixes = prefixes

    def update(self, keys: Tensor, values: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Record keys and values, as `DynamicLayer.update` does: all of them, those of the prefixes first."""
        self.keys, self.values = keys, values
        if self.prefixes:
            self.keys = _behind_prefixes([prefix.keys for prefix in self.prefixes], keys)
            self.values = _behind_prefixes([prefix.values for prefix in self.prefixes], values)
        return self.keys, self.values


def _behind_prefixes(prefixes: Sequence[Tensor], values: Tensor) -> Tensor:
    """(B, ..., P + T, d): `values` (B, ..., T, d), behind those of each row's prefix (..., P, d)."""
    length = prefixes[0].shape[-2]
    both = values.new_empty(*values.shape[:-2], length + values.shape[-2], values.shape[-1])
    torch.stack(list(prefixes), out=both[..., :length, :])
    both[..., length:, :] = values
    return both


def _empty_kv_layer(cache: Any, number: int) -> Any:
    """The layer of a KV cache, if it holds nothing yet and will hold everything; else None."""
    from transformers.cache_utils import DynamicLayer

    layers = getattr(cache, "layers", [])
    good = number < len(layers) and type(layers[number]) is DynamicLayer and layers[number].get_seq_length() == 0
    return layers[number] if good else None


def _can_split(layer: Any, kwargs: dict[str, Any]) -> bool:
    """Whether a layer's arguments can be split between prefix and question, and each token sees all before it."""
    return (
        getattr(getattr(layer, "self_attn", None), "is_causal", False)
        and kwargs.get("attention_mask") is None
        and kwargs.get("position_embeddings") is not None
        and not any(isinstance(value, Tensor) for name, value in kwargs.items() if name not in KNOWN_ARGUMENTS)
    )


def _slice_arguments(kwargs: dict[str, Any], columns: slice, rows: list[int] | None = None) -> dict[str, Any]:
    """A layer's arguments for some of its columns, and of its rows where rows have positions of their own."""

    def some(values: Tensor, row: int, column: int) -> Tensor:
        if rows is not None and values.shape[row] > 1:
            values = values.index_select(row, torch.tensor(rows, device=values.device))
        start, stop, _ = columns.indices(values.shape[column])
        return values.narrow(column, start, stop - start)

    own: dict[str, Any] = {"position_embeddings": tuple(some(part, -3, -2) for part in kwargs["position_embeddings"])}
    if kwargs.get("position_ids") is not None:
        own["position_ids"] = some(kwargs["position_ids"], -2, -1)
    return kwargs | own


def _last_token_forward(layer: Any) -> Callable[..., Any]:
    """A layer's forward that makes all keys and values, but an output that is right for the last token alone."""
    plain, attention, mlp = layer.forward, getattr(layer, "self_attn", None), getattr(layer, "mlp", None)
    modules = [getattr(attention, name) for name in ("q_proj", "o_proj") if hasattr(attention, name)]
    modules += [mlp] * hasattr(mlp, "down_proj")  # not a mixture of experts

    def last_only(module: Any) -> Callable[..., Any]:
        all_tokens = module.forward

        def forward(states: Tensor) -> Tensor:
            return F.pad(all_tokens(states[:, -1:]), (0, 0, states.shape[1] - 1, 0))

        return forward

    def forward(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        with ExitStack() as stack:
            for module in modules if hidden_states.shape[1] > 1 else ():
                stack.enter_context(patched_attributes(module, {"forward": last_only(module)}))
            return plain(hidden_states, *args, **kwargs)

    return forward

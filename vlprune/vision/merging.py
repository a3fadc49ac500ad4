"""Tokens that merge between the attention and the MLP of a tower's layers, as in ToMe (Bolya et al., ICLR 2023).

A layer takes and returns hidden states of all places, so that the tower around it, and whoever reads the hidden states
of a layer, see what they always see: each place has the state of the token that it was merged into. Inside, a layer
computes each token once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vlprune.errors import UnsupportedModel
from vlprune.selection.matching import match_tokens

#: What a layer runs: norm, attention and what scales its output; norm, MLP and what scales its output.
LAYOUTS = (
    (("layer_norm1",), "self_attn", (), ("layer_norm2", "mlp")),
    (("norm1",), "attention", ("layer_scale1", "drop_path"), ("norm2", "mlp", "layer_scale2", "drop_path")),
)
#: Names of an attention's projections of queries, keys, values and output; the second ones until transformers 5.18.
PROJECTIONS = (("q_proj", "query"), ("k_proj", "key"), ("v_proj", "value"), ("out_proj", "o_proj", "dense"))


def merges_by_layer(n: int, layers: int, merge: float) -> list[int]:
    """How many of n patches merge in each layer, so that the share `merge` of them is merged after the last one.

    They are spread evenly over the layers; one layer merges at most half of the tokens that it has.

    >>> merges_by_layer(576, 7, 0.5)
    [41, 41, 41, 41, 41, 41, 42]
    >>> merges_by_layer(16, 2, 0.9)
    Traceback (most recent call last):
    ...
    ValueError: merge=0.9: each of the tower's 2 layers merges at most half of its tokens, so at most 0.65 of 16.
    """
    if not _fits(counts := _spread(n, layers, merge), n):
        most = next(share for share in range(99, -1, -1) if _fits(_spread(n, layers, share / 100), n)) / 100
        raise ValueError(
            f"merge={merge!r}: each of the tower's {layers} layers merges at most half of its tokens, so at most "
            f"{most} of {n}."
        )
    return counts


def _spread(n: int, layers: int, merge: float) -> list[int]:
    total = round(merge * n)
    return [total * (layer + 1) // layers - total * layer // layers for layer in range(layers)]


def _fits(counts: Sequence[int], n: int) -> bool:
    return all(count <= (n - sum(counts[:layer])) // 2 for layer, count in enumerate(counts))


class MergedTokens:
    """Which of the L places of B images share a token; the `leading` ones (class token, registers) never do.

    `places` (B, T) is a place of each of the T tokens, `tokens` (B, L) the token of each place, and `sizes` (B, T) how
    many places share a token. At first each place has its own.

    >>> merged, states = MergedTokens(1, 3, 1, torch.device("cpu")), torch.tensor([[[9.0], [2.0], [4.0]]])
    >>> merged.merge(states, keys=torch.ones(1, 3, 1), count=1).tolist()
    [[[9.0], [3.0]]]
    >>> merged.sizes.tolist(), merged.tokens.tolist()
    ([[1.0, 2.0]], [[0, 1, 1]])
    """

    def __init__(self, images: int, length: int, leading: int, device: torch.device) -> None:
        self.leading = leading
        self.places = self.tokens = torch.arange(length, device=device).expand(images, length)
        self.sizes = torch.ones(images, length, device=device)

    def merge(self, states: Tensor, keys: Tensor, count: int) -> Tensor:
        """Merge `count` more pairs of tokens by their keys (B, T, d_k); return the tokens' new `states` (B, T, d).

        A merged token's state is the mean of its places' states.
        """
        if not count:
            return states
        first = torch.arange(self.leading, device=states.device).expand(len(states), -1)
        stay, go, into = match_tokens(keys[:, self.leading :], count)
        stay, go, into = torch.cat([first, stay + self.leading], dim=1), go + self.leading, into + self.leading
        wide = torch.promote_types(states.dtype, torch.float32)
        sizes, going = self.sizes.gather(1, stay).to(wide), self.sizes.gather(1, go).to(wide)
        self.sizes = sizes.scatter_add(1, into, going)  # whole numbers: exact in any order
        # Only tokens that others merge into change. Where several merge into one it has a row for each of them, all
        # alike: of states a product, not index_add, which on a GPU would add in a different order each time.
        kept = _take(states, stay)
        own = _take(kept, into).to(wide) * sizes.gather(1, into)[:, :, None]
        alike = (into[:, :, None] == into[:, None, :]).to(wide)
        total = torch.baddbmm(own, alike, _take(states, go).to(wide) * going[:, :, None])
        merged = (total / self.sizes.gather(1, into)[:, :, None]).to(states.dtype)
        kept.scatter_(1, into[:, :, None].expand_as(merged), merged)
        renumbered = torch.empty_like(self.places)
        renumbered.scatter_(1, stay, torch.arange(stay.shape[1], device=stay.device).expand_as(stay))
        renumbered.scatter_(1, go, into)
        self.places, self.tokens = self.places.gather(1, stay), renumbered.gather(1, self.tokens)
        return kept


def merging_forwards(tower: Any, merge: float, leading: int) -> list[tuple[Any, Callable[..., Tensor]]]:
    """The layers of a tower, in order, each with a forward that merges tokens behind the `leading` ones.

    Threads may call them at the same time.
    """
    layers, heads = find_layers(tower), tower.config.num_attention_heads
    if len(layers) != tower.config.num_hidden_layers:
        raise UnsupportedModel(
            f"the layers of {type(tower).__name__} are not made as vlprune knows them: cannot merge."
        )
    call = threading.local()  # `merged` and `counts` of this thread's running call

    def make(number: int, layer: Any) -> Callable[..., Tensor]:
        before, attention, after, mlp = next(layout for layout in LAYOUTS if _has(layer, layout))
        parts = {name.rpartition(".")[2]: part for name, part in getattr(layer, attention).named_modules()}
        projections = [next(parts[name] for name in names if name in parts) for names in PROJECTIONS]

        def run(names: Sequence[str], states: Tensor) -> Tensor:
            for name in names:
                states = getattr(layer, name)(states)
            return states

        def forward(hidden_states: Tensor, *_: Any, **__: Any) -> Tensor:
            images, length = hidden_states.shape[:2]
            if number == 0:
                call.counts = merges_by_layer(length - leading, len(layers), merge)
                call.merged = MergedTokens(images, length, leading, hidden_states.device)
            merged = call.merged
            short = merged.sizes.shape[1] < length  # something has merged already
            states = _take(hidden_states, merged.places) if short else hidden_states
            attended, keys = _attend(projections, heads, run(before, states), merged.sizes if short else None)
            states = merged.merge(states + run(after, attended), keys, call.counts[number])
            states = states + run(mlp, states)
            if number == len(layers) - 1:
                call.merged = None
            return _take(states, merged.tokens)

        return forward

    return [(layer, make(number, layer)) for number, layer in enumerate(layers)]


def _attend(projections: Sequence[Any], heads: int, states: Tensor, sizes: Tensor | None) -> tuple[Tensor, Tensor]:
    """An attention module's output (B, T, d), and the mean over heads of its keys (B, T, d_k).

    A token counts `sizes` (B, T) times, or all once. The module itself is not called: attention implementations differ
    in the masks that they take, and none returns keys.
    """
    query, key, value = (project(states).unflatten(2, (heads, -1)).transpose(1, 2) for project in projections[:3])
    mask = None if sizes is None else sizes.log()[:, None, None].to(query.dtype)
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return projections[3](out.transpose(1, 2).flatten(2)), key.mean(dim=1)


def _take(states: Tensor, places: Tensor) -> Tensor:
    """The states (B, m, d) of `states` (B, n, d) at `places` (B, m); whole rows are copied, faster than by `gather`."""
    images, length, _ = states.shape
    rows = places + length * torch.arange(images, device=places.device)[:, None]
    return states.flatten(0, 1).index_select(0, rows.flatten()).unflatten(0, places.shape)


def find_layers(tower: Any) -> list[Any]:
    """The layers of a tower, in order."""
    return [module for module in tower.modules() if any(_has(module, layout) for layout in LAYOUTS)]


def _has(module: Any, layout: tuple[tuple[str, ...], str, tuple[str, ...], tuple[str, ...]]) -> bool:
    before, attention, after, mlp = layout
    return all(hasattr(module, name) for name in (*before, attention, *after, *mlp))

"""Where each token of a shortened prompt comes from.

`B` rows, `L` columns before, `S` columns after. A column of the shortened prompt that no token needs (rows
lose different numbers of tokens) is a filler: it is masked, and lies where the prompt's own padding lies.
"""

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

#: Where a KV cache notes the layout of the prompt that it holds.
CACHE_ATTRIBUTE = "_vlprune_layout"


@dataclass(frozen=True)
class Layout:
    """`ids` (B, L) the prompt before; `index` (B, S) the column each token came from; `mask` (B, S) 0 where padded.

    `fillers` tells, without asking the device, whether `mask` may hold a 0. `records` are the images'
    records. `grid` (3, B, L) are the whole prompt's positions in time, height and width, for models that have such.
    """

    ids: Tensor
    index: Tensor
    mask: Tensor
    fillers: bool
    records: tuple[Any, ...] = field(default=())
    grid: Tensor | None = None

    @property
    def before(self) -> int:
        return self.ids.shape[1]

    @property
    def after(self) -> int:
        return self.index.shape[1]

    def gather(self, columns: Tensor) -> Tensor:
        """Shorten a (B, L) or (B, L, d) companion of the prompt."""
        if columns.ndim == 2:
            return columns.gather(1, self.index)
        return columns.gather(1, self.index.unsqueeze(-1).expand(-1, -1, columns.shape[-1]))

    def dropped(self, mask: Tensor) -> Tensor:
        """(B, L) True for the real tokens (mask 1) that are gone."""
        kept = torch.zeros_like(mask, dtype=torch.bool)
        kept.scatter_(1, self.index, self.mask.bool())
        return mask.bool() & ~kept

    def positions(self, mask: Tensor, places: Tensor, renumber: bool) -> Tensor:
        """(B, S) of the positions `places` (B, L): as they were, or less the tokens that are gone before each."""
        return self.gather(places - self.dropped(mask).long().cumsum(1) if renumber else places)

    def on_grid(self) -> Tensor:
        """(4, B, S) positions: the count of tokens, which the model's mask goes by, then time, height and width."""
        assert self.grid is not None
        count = (self.mask.long().cumsum(1) - 1).masked_fill(self.mask == 0, 0)
        return torch.stack([count, *(self.gather(axis) for axis in self.grid)])

    def next_on_grid(self) -> Tensor:
        """(B, 1) the position of the token after the prompt, in time, height and width alike."""
        assert self.grid is not None
        return self.grid[:, :, -1:].amax(dim=0) + 1

    def repeated(self, times: int) -> "Layout":
        """The same for `times` copies of every row, side by side."""
        if times == 1:
            return self
        ids, index, mask = (t.repeat_interleave(times, dim=0) for t in (self.ids, self.index, self.mask))
        grid = None if self.grid is None else self.grid.repeat_interleave(times, dim=1)
        return Layout(ids, index, mask, self.fillers, self.records, grid)


def keep_all(ids: Tensor, mask: Tensor, records: tuple[Any, ...] = ()) -> Layout:
    """The layout that drops nothing.

    >>> keep_all(torch.tensor([[5, 6]]), torch.ones(1, 2, dtype=torch.long)).index
    tensor([[0, 1]])
    """
    index = torch.arange(ids.shape[1], device=ids.device).expand(ids.shape)
    return Layout(ids, index, mask, True, records)


def drop_columns(ids: Tensor, mask: Tensor, drop: Tensor, order: Tensor, lost: list[int], real: list[int]) -> Layout:
    """Drop columns per row and close the gaps; rows are padded on the left, unless the prompt is on the right.

    `mask` (B, L) is 1 for real tokens, `drop` (B, L) is True for real tokens to drop; `lost` and `real` count
    both per row (the caller knows them, and asking the device would wait for it). `order` (B, L) is each token's
    column, or another token's where they change places. Padding that all rows share stays.

    >>> ids = torch.tensor([[1, 9, 9, 2], [0, 0, 3, 4]])
    >>> order = torch.arange(4).expand(2, 4)
    >>> layout = drop_columns(ids, (ids > 0).long(), ids == 9, order, lost=[2, 0], real=[4, 2])
    >>> layout.gather(ids), layout.mask
    (tensor([[1, 2],
            [3, 4]]), tensor([[1, 1],
            [1, 1]]))
    """
    if not any(lost):
        return keep_all(ids, mask)
    length = ids.shape[1]
    left = [count - gone for count, gone in zip(real, lost)]
    size = max(left) + length - max(real)
    keep = mask.bool() & ~drop
    index = torch.where(keep, order + length, order).argsort(dim=1)[:, length - size :]
    if min(real) < length:  # padded, on the right if all rows begin real and not all end so
        right = mask[:, 0].bool().all() & ~mask[:, -1].bool().all()
        back = torch.where(keep, order, order + length).argsort(dim=1)[:, :size]
        index = torch.where(right, back, index)
    kept = torch.where(keep, mask, torch.zeros_like(mask)).gather(1, index)
    return Layout(ids, index, kept, min(left) < size)


def join_layouts(first: Layout, rest: Layout, ids: Tensor) -> Layout:
    """A frozen beginning of a prompt, then the layout of its remaining columns."""
    start = ids.shape[1] - rest.before
    index = torch.cat([first.index, rest.index + start], dim=1)
    mask = torch.cat([first.mask, rest.mask.to(first.mask.dtype)], dim=1)
    return Layout(ids, index, mask, first.fillers or rest.fillers, first.records + rest.records)


def shorten_companions(
    kwargs: dict[str, Any], layout: Layout, mask: Tensor, shape: torch.Size, start: int = 0
) -> dict[str, Any]:
    """What else in a call has the prompt's `shape`, one entry per token, shortened by the layout, from `start` on."""
    changed = {}
    for name, value in kwargs.items():
        if name in ("input_ids", "attention_mask", "position_ids") or not isinstance(value, Tensor):
            continue
        if value.shape == shape:
            value = layout.gather(F.pad(value, (layout.before - shape[1], 0)))
            if name == "labels":  # a dropped token that fills a gap is no target
                value = value.masked_fill((layout.mask == 0) & (layout.gather(mask) != 0), -100)
            changed[name] = value[:, start:]
    return changed


def continue_from_cache(kwargs: dict[str, Any], layout: Layout, held: int, renumber: bool) -> dict[str, Any]:
    """The mask and positions of a call that goes on from a shortened prompt with `held` tokens in its cache.

    The caller's own count the whole prompt. Only what has to change is returned.
    """
    given = kwargs.get("inputs_embeds") if kwargs.get("input_ids") is None else kwargs["input_ids"]
    if given is None:
        return {}
    changed: dict[str, Any] = {}
    rows, new = given.shape[:2]
    layout = layout.repeated(max(1, rows // layout.ids.shape[0]))
    lost, mask, places = layout.before - layout.after, kwargs.get("attention_mask"), kwargs.get("position_ids")
    front = layout.mask[:, :held]
    if mask is not None and mask.ndim == 2 and lost and mask.shape[1] == held + new + lost:
        changed["attention_mask"] = torch.cat([front.to(mask.dtype), mask[:, lost + front.shape[1] :]], dim=1)
    elif mask is None and layout.fillers:
        changed["attention_mask"] = torch.cat([front, front.new_ones(rows, held + new - front.shape[1])], dim=1)
    if layout.grid is not None:
        if places is None:
            steps = torch.arange(held - layout.after, held - layout.after + new, device=given.device)
            changed["position_ids"] = (layout.next_on_grid() + steps).expand(3, rows, new)
    elif renumber and places is not None:
        changed["position_ids"] = places - lost
    elif not renumber and places is None:
        columns = torch.arange(held + lost, held + lost + new, device=given.device)
        changed["position_ids"] = columns.expand(rows, new)
    return changed


def cached_beginning(layout: Layout, ids: Tensor, mask: Tensor, cached: int) -> Layout:
    """The beginning of a longer prompt `ids` (B, L) that a cache of `cached` tokens holds, as `layout` laid it out.

    It ends where the two prompts part, or where the cache ends (it also holds the tokens that were
    generated). Raises `ValueError` when the cache holds more than the prompts share.
    """
    rows = ids.shape[0]
    if rows % layout.ids.shape[0]:
        raise ValueError(f"past_key_values was filled by {layout.ids.shape[0]} prompts and cannot continue {rows}.")
    layout = layout.repeated(rows // layout.ids.shape[0])
    shared = min(layout.before, ids.shape[1])
    end = int((layout.ids[:, :shared] == ids[:, :shared]).all(dim=0).int().cumprod(0).sum())
    size = layout.after
    if end < layout.before:
        size = int((layout.index < end).all(dim=0).int().cumprod(0).sum())
    if size < min(cached, layout.after) or bool((layout.index[:, size:] < end).any()):
        raise ValueError(
            "past_key_values holds another prompt than input_ids: "
            "pass the earlier prompt, unchanged, then the new turn."
        )
    more = keep_all(ids[:, end : end + max(0, cached - size)], mask[:, end : end + max(0, cached - size)])
    first = Layout(ids[:, :end], layout.index[:, :size], layout.mask[:, :size], layout.fillers, layout.records)
    both = join_layouts(first, more, ids[:, : end + more.before])
    if layout.grid is None:
        return both
    steps = torch.arange(max(0, both.before - layout.before), device=ids.device)
    grid = torch.cat([layout.grid, (layout.next_on_grid() + steps).expand(3, rows, -1)], dim=2)
    return replace(both, grid=grid[:, :, : both.before])


def with_cached_ids(ids: Tensor, mask: Tensor, known: Layout | None) -> Tensor:
    """The new tokens with stand-ins in front, as many as the mask says, for those that the cache holds."""
    past = known.ids.repeat_interleave(len(ids) // len(known.ids), dim=0) if known is not None else ids[:, :0]
    missing = mask.shape[1] - ids.shape[1] - past.shape[1]
    if missing < 0:
        raise ValueError(
            f"attention_mask has {mask.shape[1]} columns, fewer than the cached prompt and input_ids together."
        )
    return torch.cat([past, ids.new_zeros(len(ids), missing), ids], dim=1)


def layout_of(cache: Any) -> Layout | None:
    """The layout of the prompt that a KV cache holds; None where nothing was dropped from it."""
    return getattr(cache, CACHE_ATTRIBUTE, None)


def note_layout(cache: Any, layout: Layout) -> None:
    """Note in a KV cache how the prompt lies that it holds."""
    setattr(cache, CACHE_ATTRIBUTE, layout)

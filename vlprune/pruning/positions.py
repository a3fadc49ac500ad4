"""Positions of the tokens that are left: re-numbered, as they were, or on the grid of models that have one."""

from typing import Any

import torch
from torch import Tensor

from vlprune.pruning.layout import Layout


def uses_flash_attention(model: Any) -> bool:
    """Whether attention is flash attention, which needs the mask to know where a static cache ends."""
    return "flash" in str(model.config.get_text_config()._attn_implementation)


def short_position_ids(
    model: Any, rule: str, layout: Layout, mask: Tensor, given: Tensor | None, default: Tensor
) -> Tensor | None:
    """(B, S) positions to pass on, (4, B, S) on a grid, or None where the model numbers the short prompt itself.

    `rule` is "renumbered", "original" or "grid". `given` are the caller's position ids, `default` (B, L) the positions
    that the model would give the whole prompt.
    """
    if rule == "grid":
        return layout.on_grid()
    if given is None and rule == "renumbered":
        return None
    if rule == "original" and uses_flash_attention(model):
        attention = model.config.get_text_config()._attn_implementation
        raise ValueError(f"positions='original' leaves gaps, which {attention} reads as packed sequences: use sdpa.")
    places = default if given is None else given.expand(layout.ids.shape[0], -1)
    if places.shape != layout.ids.shape:
        raise ValueError(f"position_ids must have one position per token of the prompt, {tuple(layout.ids.shape)}.")
    return layout.positions(mask, places, renumber=rule == "renumbered")


def grid_positions(
    first: Layout | None, given: Tensor | None, merged: Tensor | None, begin: int, default: Tensor
) -> Tensor:
    """(3, B, L) the whole prompt's positions in time, height and width, as the plain model would have them.

    `merged` are those that the model gave the columns from `begin` on, None where it left them to the decoder; `first`
    lays out what a cache holds.
    """
    if given is not None:
        raise ValueError("position_ids cannot be passed: they are made from the prompt and its images.")
    new = default[:, begin:] - default[:, begin : begin + 1] if merged is None else merged
    new = new.expand(3, -1, -1) if new.ndim == 2 else new[-3:]
    if first is None or begin == 0:
        return new
    assert first.grid is not None
    return torch.cat([first.grid, first.next_on_grid() + new], dim=2)

"""Qwen's towers take any set of patches: of tokens whose pixels are the same, the patches are encoded once.

To drop pixels that repeat before the tower is the idea of PixelPrune (arXiv:2604.00886). Here no token is lost: one
that repeats has the features of the first with its pixels, and what enters the LLM is the method's business.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from vlprune.vision.repeats import first_equal


def encode_patches_once(tower: Any, original: Callable[..., Any], pixels: Tensor, grids: Tensor, **options: Any) -> Any:
    """The tower's output for pixels (P, c) of images and videos of these `grids` (N, 3), in patches.

    Tokens of one image or video whose pixels have equal bits are encoded once. Where none has, it is the original's.
    """
    patches = _Patches(tower, pixels, grids)
    if len(patches.kept) == len(patches.source):
        return original(pixels, grids, **options)
    return patches.expand(original(pixels[patches.index], grids, **patches.arguments(), **options))


class _Patches:
    """Which patches of a call are encoded. A unit is what becomes one visual token: `unit` patches in a row.

    `kept` (K,) are the units to encode, in order, and `source` (U,) is the one of them that stands for each unit.
    """

    def __init__(self, tower: Any, pixels: Tensor, grids: Tensor) -> None:
        self.tower, self.grids, self.device = tower, grids, pixels.device
        self.unit = tower.spatial_merge_size**2
        times, sizes = grids[:, 0], grids[:, 1] * grids[:, 2] // self.unit
        frames = torch.arange(int(times.sum()), device=grids.device)
        self.frame = frames.repeat_interleave(sizes.repeat_interleave(times)).to(self.device)
        image = torch.arange(len(grids), device=grids.device).repeat_interleave(times * sizes).to(self.device)
        first = first_equal(pixels.reshape(len(image), -1), image)
        is_first = first == torch.arange(len(first), device=self.device)
        self.kept, self.source = is_first.nonzero().flatten(), (is_first.cumsum(0) - 1)[first]
        self.index = (self.kept[:, None] * self.unit + torch.arange(self.unit, device=self.device)).flatten()
        self.order: Tensor | None = None  # of the units in the tower's states, where it sorts them into windows

    def arguments(self) -> dict[str, Tensor]:
        """What the tower would make of the images' sizes, for the patches that are encoded."""
        from transformers import vision_utils

        tower, merge = self.tower, self.tower.spatial_merge_size
        given = {
            "position_ids": vision_utils.get_vision_position_ids(self.grids, merge)[self.index],
            "cu_seqlens": self._boundaries(self.frame[self.kept]),
        }
        if hasattr(tower, "window_size"):
            windows, ends = vision_utils.get_vision_window_index(
                self.grids, spatial_merge_size=merge, window_size=tower.window_size, patch_size=tower.patch_size
            )
            windows = windows.to(self.device)
            places = torch.arange(len(windows), device=self.device) * self.unit
            window_of_unit = torch.empty_like(windows)
            window_of_unit[windows] = torch.bucketize(places, ends.to(self.device), right=True)
            stay = windows[torch.isin(windows, self.kept)]
            self.order, given["window_index"] = windows, self.source[stay]
            given["cu_window_seqlens"] = self._boundaries(window_of_unit[stay])
        if hasattr(tower, "pos_embed"):
            indices, weights = vision_utils.get_vision_interpolation_indices_and_weights(
                self.grids,
                num_grid_per_side=tower.num_grid_per_side,
                mode=tower.interpolation_mode,
                align_corners=tower.interpolation_align_corners,
                spatial_merge_size=merge,
            )
            given["interp_indices"], given["interp_weights"] = indices[self.index], weights[self.index]
        return given

    def _boundaries(self, groups: Tensor) -> Tensor:
        """Where groups of units begin and end, counted in patches, from each unit's group, in order."""
        counts = groups.unique_consecutive(return_counts=True)[1]
        return pad((counts * self.unit).cumsum(0), (1, 0)).int()

    def expand(self, output: Any) -> Any:
        """The output for all patches, from that of those which were encoded."""
        units, source = output.last_hidden_state.view(len(self.kept), self.unit, -1), self.source
        if self.order is not None:
            encoded = source[self.order[torch.isin(self.order, self.kept)]]
            source = encoded.argsort()[source][self.order]
        output.last_hidden_state = units[source].flatten(0, 1)
        output.pooler_output = output.pooler_output[self.source]
        if getattr(output, "deepstack_features", None) is not None:
            output.deepstack_features = [features[self.source] for features in output.deepstack_features]
        return output

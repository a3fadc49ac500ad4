"""CUDA graphs of a dual encoder's text tower, which reads the question."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor, nn

from vlprune.captured_graph import StreamOrder
from vlprune.cuda_graphs.capture import Capture, Capturing, ModuleInspector
from vlprune.devices import copy_to_device
from vlprune.pruning.dual_encoder import clip_text, clip_text_at_end, up_to_end

#: Questions are filled up to a multiple of so many tokens, each of which has its graph.
STEP = 16


class TextTowerGraphs:
    """Does what `clip_text` does, by graphs: one for each multiple of `STEP` tokens.

    The text tower has to be on the device of `model`. `capture` takes the place of CUDA's own, on any device.
    """

    def __init__(self, model: Any, capture: Capture | None = None) -> None:
        self._model, self._capturing = model, Capturing(model, capture, _warn)
        self._graphs: dict[Hashable, tuple[Tensor, Callable[[], Tensor]]] = {}
        self._captured: tuple[Any, Hashable] = (None, None)
        self._inspect: ModuleInspector | None = None
        self._order = StreamOrder()

    def clear(self) -> None:
        """Free the graphs."""
        self._graphs.clear()
        self._captured, self._inspect = (None, None), None

    def __call__(self, encoder: Any, ids: list[int]) -> Tensor | None:
        """(1, c) the embedding of one text of these token ids; None without an end token."""
        capture, seen, device = self._capturing.capture(), up_to_end(encoder, ids), encoder.device
        covered = device == self._model.device and not torch.is_autocast_enabled(device.type)
        if capture is None or seen is None or not covered or torch.is_grad_enabled():
            return clip_text(encoder, ids)
        parts = (encoder.text_model, encoder.text_projection)
        if self._inspect is None or tuple(self._inspect.module.children()) != parts:
            self._inspect = ModuleInspector(nn.ModuleList(parts))
        weights, hooked = self._inspect()
        if hooked:
            return clip_text(encoder, ids)
        longest = encoder.text_model.embeddings.position_embedding.weight.shape[0]
        length = min(-(-len(seen) // STEP) * STEP, longest)
        with torch.inference_mode(False), torch.no_grad():  # what is captured outlives an inference mode
            given = torch.tensor([seen + [seen[-1]] * (length - len(seen)) + [len(seen) - 1]])
            try:
                held, replay = self._get(encoder, given, weights, capture)
            except RuntimeError as error:
                self._capturing.stop(error)
                return clip_text(encoder, ids)
            self._order.follow(device)
            held.copy_(copy_to_device(given, device))
            return replay().clone()  # the next replay overwrites what a graph returns

    def _get(self, encoder: Any, given: Tensor, weights: Hashable, capture: Capture) -> Any:
        """The memory that a graph of this length reads from, and its replay."""
        if self._captured != (encoder, weights):
            self._graphs.clear()
            self._captured = (encoder, weights)
        length = given.shape[1]
        if length not in self._graphs:
            held = given.to(encoder.device, copy=True)
            self._graphs[length] = held, capture(lambda: clip_text_at_end(encoder, held))
        return self._graphs[length]


def _warn(reason: str) -> None:
    warnings.warn(f"vlprune: questions are embedded without CUDA graphs: {reason}.", stacklevel=2)

"""Seconds of one `generate`, split into vision, selection, prefill and decode."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from statistics import median
from typing import Any

import torch

from vlprune.pruning.patched_attributes import Patches


@dataclass(frozen=True)
class Latency:
    """Seconds of the parts of one `generate`.

    `question`: its embedding, and with a dual encoder that of the visual tokens in the same space. `vision`: tower and
    projector. `selection`: from these two to the chosen indices. `prefill`: the LLM's first forward. `decode`: from
    there to the end. `rest`: what is left of the call (preparing it, merging and shortening the prompt).

    >>> Latency(vision=1.0, selection=0.5, prefill=2.0, decode=3.0, rest=0.25).total
    6.75
    """

    question: float = 0.0
    vision: float = 0.0
    selection: float = 0.0
    prefill: float = 0.0
    decode: float = 0.0
    rest: float = 0.0

    @property
    def total(self) -> float:
        """Seconds of the whole call."""
        return self.question + self.vision + self.selection + self.prefill + self.decode + self.rest

    @staticmethod
    def median(runs: Sequence[Latency]) -> Latency:
        """The median of each part.

        >>> Latency.median([Latency(vision=1.0), Latency(vision=9.0), Latency(vision=2.0)]).vision
        2.0
        """
        if not runs:
            raise ValueError("runs is empty: pass at least one Latency.")
        return Latency(**{part.name: median(getattr(run, part.name) for run in runs) for part in fields(Latency)})


class Clock:
    """Times the parts of one `model.generate` inside its `with`, by hooks that it removes afterwards.

    `pruner` is the one attached to the model, if any: it knows the seconds of question and selection. On a GPU the
    clock waits for the device, five times a call; decoding steps are not slowed. Afterwards `latency` holds the
    seconds, and `prompt` the (rows, tokens) that entered the LLM.

    >>> from vlprune import Random, attach, pocket
    >>> model, processor, _ = pocket.load()
    >>> image = torch.zeros(3, 192, 192, dtype=torch.uint8)
    >>> inputs = processor(images=image, text="USER: <image> is there a red star? ASSISTANT:", return_tensors="pt")
    >>> with attach(model, Random(keep=64)) as pruner, Clock(model, pruner) as clock:
    ...     _ = model.generate(**inputs, max_new_tokens=2)
    >>> clock.latency.prefill > 0, inputs["input_ids"].shape[1] - clock.prompt[1]
    (True, 512)
    """

    def __init__(self, model: Any, pruner: Any = None) -> None:
        self._model, self._pruner = model, pruner
        self._handles: list[Any] = []
        self._patches = Patches()
        self._vision = self._began = self._prefill_began = self._vision_began = 0.0
        self._prefill_ended: float | None = None
        self.prompt: tuple[int, int] = (0, 0)
        self.latency = Latency()

    def __enter__(self) -> Clock:
        model = self._model
        decoder = model.get_decoder()
        encoders = [child for child in model.base_model.children() if child is not decoder]
        for encoder in encoders:
            self._handles.append(encoder.register_forward_pre_hook(self._vision_starts))
            self._handles.append(encoder.register_forward_hook(self._vision_stops))
        self._handles.append(decoder.register_forward_pre_hook(self._prefill_starts, with_kwargs=True))
        self._handles.append(model.register_forward_hook(self._forward_stops))
        self._vision, self._prefill_ended = 0.0, None
        graphs = getattr(self._pruner, "cuda_graphs", None)
        if hasattr(graphs, "reads_ahead"):  # else the device would read the prompt before the prefill
            self._patches.add(graphs, "reads_ahead", False)
        self._began = self._now()
        return self

    def __exit__(self, kind: object, *error: object) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._patches.undo()
        if kind is not None:
            return
        ended = self._now()
        if self._prefill_ended is None:
            raise RuntimeError("nothing ran inside the clock: call model.generate(...) in its with.")
        records = self._pruner.records if self._pruner is not None else []
        question = self._pruner.question_seconds if self._pruner is not None else 0.0
        selection = sum(record.seconds for record in records)
        prefill, decode = self._prefill_ended - self._prefill_began, ended - self._prefill_ended
        known = question + self._vision + selection + prefill + decode
        rest = max(0.0, ended - self._began - known)
        self.latency = Latency(question, self._vision, selection, prefill, decode, rest)

    def _now(self) -> float:
        device = self._model.device
        if device.type != "cpu":
            torch.accelerator.synchronize(device)
        return time.perf_counter()

    def _vision_starts(self, module: Any, args: Any) -> None:
        if self._prefill_ended is None:
            self._vision_began = self._now()

    def _vision_stops(self, module: Any, args: Any, output: Any) -> None:
        if self._prefill_ended is None:
            self._vision += self._now() - self._vision_began

    def _prefill_starts(self, module: Any, args: Any, kwargs: dict[str, Any]) -> None:
        # a pruner enters the decoder once before the real call, to see its inputs, so the last entry counts
        if self._prefill_ended is None:
            embeds = kwargs.get("inputs_embeds")
            if embeds is not None:
                self.prompt = (embeds.shape[0], embeds.shape[1])
            self._prefill_began = self._now()

    def _forward_stops(self, module: Any, args: Any, output: Any) -> None:
        if self._prefill_ended is None:
            self._prefill_ended = self._now()

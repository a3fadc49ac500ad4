"""Measures the efficiency table of papers on token pruning, for any model and method.

Every row is measured in the same way, also the one without pruning: whole calls of `generate`, after warm-up, by the
clock of `vlprune.measure.latency`. Rows take turns, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vlprune.measure.discrepancy import FirstLogits, next_token_kl
from vlprune.measure.efficiency_report import EfficiencyReport, Row, Spread
from vlprune.measure.flops import LLMShape, llm_flops, paper_macs
from vlprune.measure.generation_cost import count_visual_tokens, layer_lengths
from vlprune.measure.latency import Clock, Latency
from vlprune.measure.memory import kv_cache_bytes

#: Runs before those that count, in each turn: graphs are captured, kernels chosen and compiled in the first.
WARMUP = 2
#: Turns of each row, unless it has fewer repeats.
TURNS = 3


def measure_efficiency(
    model: Any,
    inputs: dict[str, Any],
    methods: Mapping[str, Any] | Sequence[Any],
    *,
    name: str = "model",
    cuda_graphs: bool | str = False,
    new_tokens: int = 32,
    repeats: int = 10,
    warmup: int = WARMUP,
    tick: Callable[[], None] = lambda: None,
    **attaching: Any,
) -> EfficiencyReport:
    """Measure `generate(**inputs)` with all tokens, then with each of the methods, in the same way.

    `methods` may be given by the titles of their rows; else these are names and budgets.
    `attaching` goes to `attach`, such as `processor=` and `dual_encoder=`. `tick` is called after every `generate`, of
    which there are `count_generate_calls(methods, ...)`.

    >>> from vlprune import Random, pocket
    >>> model, processor, _ = pocket.load()
    >>> image = torch.zeros(3, 192, 192, dtype=torch.uint8)
    >>> inputs = processor(images=image, text="USER: <image> is there a red star? ASSISTANT:", return_tensors="pt")
    >>> report = measure_efficiency(model, dict(inputs), [Random(keep=64)], new_tokens=2, repeats=1, warmup=0)
    >>> [(row.method, row.visual_tokens) for row in report.rows]
    [('all tokens', 576), ('random, keep=64', 64)]
    """
    for what, value, least in (("new_tokens", new_tokens, 1), ("repeats", repeats, 1), ("warmup", warmup, 0)):
        if value < least:
            raise ValueError(f"{what}={value}: must be at least {least}.")
    from vlprune.cuda_graphs import use_cuda_graphs
    from vlprune.pruner import attach

    if not isinstance(methods, Mapping):
        methods = {f"{method.name}, keep={getattr(method, 'keep', '')}": method for method in methods}

    def running(method: Any) -> AbstractContextManager[Any]:
        if method is None:
            return use_cuda_graphs(model, cuda_graphs) or nullcontext()
        return attach(model, method, cache_bytes=0, cuda_graphs=cuda_graphs, **attaching)

    meters = [_RowMeter(model, inputs, new_tokens, tick) for _ in range(len(methods) + 1)]
    for number in _turns(repeats):
        for meter, method in zip(meters, (None, *methods.values())):
            with running(method) as held:
                meter.measure(None if method is None else held, number, warmup)
                runtime = held if method is None else held.cuda_graphs
                meter.graphed = runtime is not None and bool(runtime.graph_count)
    whole = meters[0].output
    rows = [
        replace(
            meter.row(title),
            cuda_graphs=cuda_graphs if meter.graphed else False,
            kl=float(next_token_kl(whole.logits, meter.output.logits).mean()),
            agreement=float((whole.new_ids == meter.output.new_ids).all(1).float().mean()),
        )
        for meter, title in zip(meters, ("all tokens", *methods))
    ]
    settings = {
        "model": name,
        "cuda_graphs": cuda_graphs,
        "batch": len(inputs["input_ids"]),
        "new_tokens": new_tokens,
        "repeats": repeats,
        "warmup": warmup,
    }
    return EfficiencyReport(rows, settings | describe_machine(model))


def count_generate_calls(methods: Mapping[str, Any] | Sequence[Any], repeats: int, warmup: int = WARMUP) -> int:
    """How often `measure_efficiency` calls `generate`."""
    return (len(methods) + 1) * (2 * repeats + len(_turns(repeats)) * warmup + 1)


def _turns(repeats: int) -> list[int]:
    """How many repeats each turn has."""
    turns = min(TURNS, repeats)
    return [repeats // turns + (turn < repeats % turns) for turn in range(turns)]


def describe_machine(model: Any) -> dict[str, Any]:
    """What the figures depend on: device, dtype, and the versions of what ran."""
    import transformers

    from vlprune.version import __version__

    device = model.device
    cpu = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "dtype": str(model.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "vlprune": __version__,
        "python": platform.python_version(),
    }


class _FirstTokenClock:
    """Seconds from its beginning to the model's first logits; it waits for the device at these two and not between."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._began = self.seconds = 0.0

    def __enter__(self) -> _FirstTokenClock:
        self._handle = self._model.register_forward_hook(self._stop)
        self._began = self._now()
        return self

    def __exit__(self, *error: object) -> None:
        self._handle.remove()

    def _now(self) -> float:
        if self._model.device.type != "cpu":
            torch.accelerator.synchronize(self._model.device)
        return time.perf_counter()

    def _stop(self, *_: Any) -> None:
        if not self.seconds:
            self.seconds = self._now() - self._began


class _Output(NamedTuple):
    """What was generated: the first token's logits (B, V), and the new ids (B, new tokens), on the CPU."""

    logits: Tensor
    new_ids: Tensor


class _RowMeter:
    """Measures one row of the table: the same `generate` again and again, `tick` after each.

    `output` is what was generated, from the first turn on; `graphed` is for its user to note.
    """

    output: _Output
    graphed = False

    def __init__(self, model: Any, inputs: dict[str, Any], new_tokens: int, tick: Callable[[], None]) -> None:
        self._model, self._inputs, self._tick = model, inputs, tick
        self._new_tokens = new_tokens
        self._times: list[Latency] = []
        self._firsts: list[float] = []
        self._peaks: list[int] = []
        self._counts: dict[str, Any] = {}

    def measure(self, pruner: Any, repeats: int, warmup: int) -> None:
        """A turn: so many calls, of which the parts are timed, and again of which the first token, after warm-up."""
        for _ in range(warmup):
            self._generate()
            self._tick()
        if not self._counts:
            self._look(pruner)
            self._tick()
        if self._model.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._model.device)
        self._times += self._time_parts(pruner, repeats)
        self._firsts += self._time_first_token(repeats)
        if self._model.device.type == "cuda":
            self._peaks.append(torch.cuda.max_memory_allocated(self._model.device))

    def row(self, title: str) -> Row:
        """The row, with medians over all turns; its `cuda_graphs` is False."""
        times, steps = self._times, self._new_tokens - 1
        weights = sum(tensor.nbytes for tensor in (*self._model.parameters(), *self._model.buffers()))
        return Row(
            method=title,
            cuda_graphs=False,
            **self._counts,
            vision=Spread.of([one.vision for one in times]),
            question=Spread.of([one.question for one in times]),
            selection=Spread.of([one.selection for one in times]),
            prefill=Spread.of([one.prefill for one in times]),
            first=Spread.of(self._firsts),
            decode=Spread.of([one.decode / steps for one in times]) if steps else None,
            peak_bytes=max(self._peaks) - weights if self._peaks else None,
        )

    def _look(self, pruner: Any) -> None:
        """One call, for what is the same in all of them: what it generates, its tokens, cache and operations."""
        with FirstLogits(self._model) as first_logits, Clock(self._model, pruner) as clock:
            generated = self._generate(return_dict_in_generate=True)
        self.output = _Output(first_logits.logits.cpu(), generated.sequences[:, -self._new_tokens :].cpu())
        batch, prompt = clock.prompt
        visual = count_visual_tokens(self._model, self._inputs["input_ids"], pruner)
        self._counts = {
            "visual_tokens": visual,
            "prompt_tokens": prompt,
            "kv_bytes": kv_cache_bytes(generated.past_key_values),
            **self._count_operations(pruner, batch, prompt, visual // batch),
        }

    def _count_operations(self, pruner: Any, batch: int, prompt: int, visual: int) -> dict[str, Any]:
        """The row's figures by formula, for prompts of `prompt` tokens, `visual` of them visual; none without one."""
        records = pruner.records if pruner is not None else []
        inside = any(record.stages for record in records)  # tokens are dropped between layers
        if not LLMShape.knows(self._model) or (inside and batch > 1):
            return {"flops": None, "macs": None}
        lengths = layer_lengths(self._model, prompt, records)
        visual_lengths = [length - prompt + visual for length in lengths]
        return {
            "flops": llm_flops(self._model, lengths, batch=batch).prefill,
            "macs": batch * paper_macs(self._model, visual_lengths),
            "layer_average": sum(visual_lengths) / len(visual_lengths),
        }

    def _generate(self, **options: Any) -> Any:
        lengths = {"max_new_tokens": self._new_tokens, "min_new_tokens": self._new_tokens}
        return self._model.generate(**self._inputs, **lengths, do_sample=False, **options)

    def _time_parts(self, pruner: Any, repeats: int) -> list[Latency]:
        """The seconds of each part of several calls."""
        times = []
        for _ in range(repeats):
            with Clock(self._model, pruner) as clock:
                self._generate()
            times.append(clock.latency)
            self._tick()
        return times

    def _time_first_token(self, repeats: int) -> list[float]:
        """Seconds to the first token, of several calls."""
        times = []
        for _ in range(repeats):
            with _FirstTokenClock(self._model) as clock:
                self._generate()
            times.append(clock.seconds)
            self._tick()
        return times

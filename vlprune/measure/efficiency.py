"""The efficiency table of papers on token pruning, for any model and method: tokens, operations, seconds, bytes.

Every row is measured in the same way, also the one without pruning: whole calls of `generate`, after warm-up, by the
clock of `vlprune.measure.latency`.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, replace
from statistics import median, quantiles
from typing import Any

import torch

from vlprune.measure.flops import CONVENTIONS, LLMShape, llm_flops, paper_macs
from vlprune.measure.latency import Clock, Latency
from vlprune.measure.memory import cache_bytes
from vlprune.media.outputs import MARK
from vlprune.models import family_of

#: How the LLM runs, by the value of `attach(..., cuda_graphs=)`.
WAYS = {False: "eager", True: "CUDA graphs", "compile": "compiled, CUDA graphs"}
#: Runs before those that count: graphs are captured, kernels chosen and compiled in the first.
WARMUP = 2
TITLES = {
    "method": "method",
    "visual_tokens": "visual tokens",
    "macs": "MACs (paper)",
    "flops": "FLOPs (prefill)",
    "vision": "vision ms",
    "question": "question ms",
    "selection": "selection ms",
    "prefill": "prefill ms",
    "first": "first token ms",
    "faster": "first token faster",
    "decode": "decode ms/token",
    "kv_bytes": "KV MiB",
    "peak_bytes": "peak MiB",
}
CAPTION = (
    "Medians and quartiles. question: its embedding, and the tokens in its space; selection: from there to what is "
    "kept. first token: from the call of generate to the first logits, vision and all preparation "
    "included, timed on its own, as the other columns wait for the device; faster: the first row's by this row's. "
    "MACs (paper): {paper}. FLOPs (prefill): {flops}. KV: the cache at the end, what its tokens take. "
    "peak: the most memory during generate, above the weights; graphs hold theirs all the time."
)


@dataclass(frozen=True)
class Spread:
    """The median of some seconds, and their quartiles.

    >>> Spread.of([4.0, 1.0, 2.0, 3.0, 10.0])
    Spread(median=3.0, low=2.0, high=4.0)
    >>> Spread.of([2.0])
    Spread(median=2.0, low=2.0, high=2.0)
    """

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        if len(values) == 1:
            return Spread(values[0], values[0], values[0])
        low, _, high = quantiles(values, n=4, method="inclusive")
        return Spread(median(values), low, high)


@dataclass(frozen=True)
class Row:
    """One way to answer, measured. Seconds are of one `generate`.

    `first` is the time to the first token: from the call of `generate` to the first logits, with all that lies between.
    It is a clock of its own, which does not wait for the device on the way, as that of the parts does.

    `cuda_graphs` says how the LLM ran, which is not what was asked for where graphs cannot be had.
    `visual_tokens` and `prompt_tokens` entered the LLM. `flops` are those of the prefill and `macs` the papers' count
    (see `vlprune.measure.CONVENTIONS`), None for a decoder without a formula, or tokens dropped inside of it. `decode`
    is per token, None if there is but one. `peak_bytes` is above the weights, None on a CPU.
    """

    method: str
    cuda_graphs: bool | str
    visual_tokens: int
    prompt_tokens: int
    flops: int | None
    macs: int | None
    vision: Spread
    question: Spread
    selection: Spread
    prefill: Spread
    first: Spread
    decode: Spread | None
    kv_bytes: int
    peak_bytes: int | None


@dataclass(frozen=True)
class Report:
    """The rows and what they were measured with; the first row is the model as it is."""

    rows: list[Row]
    about: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """All numbers, seconds as seconds."""
        return {**self.about, "origin": MARK, "conventions": CONVENTIONS, "rows": [asdict(row) for row in self.rows]}

    def cells(self) -> list[list[str]]:
        """The table as words, titles first, without what no row has; a spread is two of them, on lines of their own."""
        columns = [[title, *(_cell(name, row, self.rows[0]) for row in self.rows)] for name, title in TITLES.items()]
        return [list(line) for line in zip(*(column for column in columns if any(column[1:])))]

    @property
    def title(self) -> str:
        about = self.about
        return (
            f"{about['model']}, {WAYS[self.rows[0].cuda_graphs]}, {about['device']}, {about['dtype']}, "
            f"batch {about['batch']}, {about['new_tokens']} new tokens, medians of {about['repeats']}, "
            f"torch {about['torch']}, transformers {about['transformers']}"
        )

    def to_markdown(self) -> str:
        titles, *rows = self.cells()
        lines = [f"**{self.title}**", "", f"| {' | '.join(titles)} |", f"| --- |{' ---: |' * (len(titles) - 1)}"]
        lines += [f"| {' | '.join(cells)} |".replace("\n", "<br>") for cells in rows]
        return "\n".join([*lines, "", CAPTION.format(**CONVENTIONS), "", f"<!-- {MARK} -->", ""])

    def to_table(self) -> Any:
        """For rich."""
        from rich.table import Table

        titles, *rows = self.cells()
        table = Table(title=self.title, caption=CAPTION.format(**CONVENTIONS), caption_justify="left")
        for title in titles:
            first = title == TITLES["method"]
            table.add_column(title, justify="left" if first else "right", no_wrap=first, overflow="fold")
        for cells in rows:
            table.add_row(*cells)
        return table


def _cell(name: str, row: Row, whole: Row) -> str:
    from vlprune.cli.tables import amount

    if name == "method":
        return row.method if row.cuda_graphs == whole.cuda_graphs else f"{row.method}\n({WAYS[row.cuda_graphs]})"
    if name == "faster":
        return f"{whole.first.median / row.first.median:.2f}×" if row is not whole and row.first.median else ""
    value = getattr(row, name)
    if value is None or (name in ("question", "selection") and row is whole):
        return ""
    if isinstance(value, Spread):
        middle, low, high = (_milliseconds(part) for part in (value.median, value.low, value.high))
        return f"{middle}\n{low}–{high}"
    if name.endswith("_bytes"):
        return f"{value / 2**20:,.2f}" if value < 2**24 else f"{value / 2**20:,.0f}"
    return amount(value) if name in ("flops", "macs") else f"{value:,}"


def _milliseconds(seconds: float) -> str:
    """
    >>> _milliseconds(0.0001234), _milliseconds(0.01), _milliseconds(1.23456)
    ('0.123', '10.0', '1,235')
    """
    value = 1000 * seconds
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.3g}"


def bench(
    model: Any,
    inputs: dict[str, Any],
    methods: Sequence[Any],
    *,
    name: str = "model",
    cuda_graphs: bool | str = False,
    new_tokens: int = 32,
    repeats: int = 10,
    warmup: int = WARMUP,
    tick: Callable[[], None] = lambda: None,
    **attaching: Any,
) -> Report:
    """Measure `generate(**inputs)` with all tokens, then with each of the methods, in the same way.

    `attaching` goes to `attach`, such as `processor=` and `dual_encoder=`. `tick` is called after every `generate`, of
    which there are `calls(methods, ...)`.

    >>> from vlprune import Random, pocket
    >>> model, processor, _ = pocket.load()
    >>> image = torch.zeros(3, 192, 192, dtype=torch.uint8)
    >>> inputs = processor(images=image, text="USER: <image> is there a red star? ASSISTANT:", return_tensors="pt")
    >>> report = bench(model, dict(inputs), [Random(keep=64)], new_tokens=2, repeats=1, warmup=0)
    >>> [(row.method, row.visual_tokens) for row in report.rows]
    [('all tokens', 576), ('random, keep=64', 64)]
    """
    for what, value, least in (("new_tokens", new_tokens, 1), ("repeats", repeats, 1), ("warmup", warmup, 0)):
        if value < least:
            raise ValueError(f"{what}={value}: must be at least {least}.")
    from vlprune.cuda_graphs import with_graphs
    from vlprune.pruner import attach

    def measured(title: str, running: AbstractContextManager[Any], pruned: bool) -> Row:
        with running as held:
            measure = _Measure(model, inputs, held if pruned else None, new_tokens, tick)
            row = measure.row(title, repeats, warmup)
            runtime = held.cuda_graphs if pruned else held
            return replace(row, cuda_graphs=cuda_graphs if runtime is not None and runtime.graphs else False)

    rows = [measured("all tokens", with_graphs(model, cuda_graphs) or nullcontext(), False)]
    for method in methods:
        title = f"{method.name}, keep={getattr(method, 'keep', '')}"
        rows.append(measured(title, attach(model, method, cache_bytes=0, cuda_graphs=cuda_graphs, **attaching), True))
    ids = inputs["input_ids"]
    settings = {
        "model": name,
        "cuda_graphs": cuda_graphs,
        "batch": len(ids),
        "new_tokens": new_tokens,
        "repeats": repeats,
    }
    return Report(rows, {**settings, "warmup": warmup, **machine(model)})


def calls(methods: Sequence[Any], repeats: int, warmup: int = WARMUP) -> int:
    """How often `bench` calls `generate`."""
    return (len(methods) + 1) * (2 * repeats + warmup + 1)


def machine(model: Any) -> dict[str, Any]:
    """What the figures depend on."""
    import transformers

    import vlprune

    device = model.device
    cpu = f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads"
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else cpu,
        "dtype": str(model.dtype).removeprefix("torch."),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "vlprune": vlprune.__version__,
        "python": platform.python_version(),
    }


class _First:
    """Seconds from its beginning to the model's first logits; it waits for the device at these two and not between."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._began = self.seconds = 0.0

    def __enter__(self) -> _First:
        self._handle = self._model.register_forward_hook(self._answered)
        self._began = self._now()
        return self

    def __exit__(self, *error: object) -> None:
        self._handle.remove()

    def _now(self) -> float:
        if self._model.device.type != "cpu":
            torch.accelerator.synchronize(self._model.device)
        return time.perf_counter()

    def _answered(self, *_: Any) -> None:
        if not self.seconds:
            self.seconds = self._now() - self._began


class _Measure:
    def __init__(
        self, model: Any, inputs: dict[str, Any], pruner: Any, new_tokens: int, tick: Callable[[], None]
    ) -> None:
        self._model, self._inputs, self._pruner, self._tick = model, inputs, pruner, tick
        self._new = new_tokens
        self._options = {"max_new_tokens": new_tokens, "min_new_tokens": new_tokens, "do_sample": False}

    def row(self, title: str, repeats: int, warmup: int) -> Row:
        model, inputs = self._model, self._inputs
        for _ in range(warmup):
            model.generate(**inputs, **self._options)
            self._tick()
        output = model.generate(**inputs, **self._options, return_dict_in_generate=True)
        held = cache_bytes(output.past_key_values)
        del output
        self._tick()
        times, peak = [], self._peak_begins()
        for _ in range(repeats):
            with Clock(model, self._pruner) as clock:
                model.generate(**inputs, **self._options)
            times.append(clock.latency)
            self._tick()
        firsts = []
        for _ in range(repeats):
            with _First(model) as first:
                model.generate(**inputs, **self._options)
            firsts.append(first.seconds)
            self._tick()
        batch, prompt = clock.prompt
        visual, inside = self._visual()
        flops = macs = None
        if LLMShape.knows(model) and not inside:
            flops = llm_flops(model, prompt, batch=batch).prefill
            macs = batch * paper_macs(model, visual // batch)
        return Row(
            method=title,
            cuda_graphs=False,
            visual_tokens=visual,
            prompt_tokens=prompt,
            flops=flops,
            macs=macs,
            vision=Spread.of([one.vision for one in times]),
            question=Spread.of([one.question for one in times]),
            selection=Spread.of([one.selection for one in times]),
            prefill=Spread.of([one.prefill for one in times]),
            first=Spread.of(firsts),
            decode=self._decode(times),
            kv_bytes=held,
            peak_bytes=self._peak_ends() if peak else None,
        )

    def _decode(self, times: Sequence[Latency]) -> Spread | None:
        steps = self._new - 1
        return Spread.of([one.decode / steps for one in times]) if steps else None

    def _visual(self) -> tuple[int, bool]:
        """The visual tokens that entered the LLM, and whether some of them are dropped inside of it."""
        ids, family = self._inputs["input_ids"], family_of(self._model)
        visual = sum(int((ids == stream.placeholder).sum()) for stream in family.streams(self._model))
        inside = False
        for record in self._pruner.records if self._pruner is not None else []:
            entering = getattr(record, "entering", record.after)
            visual -= record.before - entering + record.structure[0] - record.structure[1]
            inside |= entering != record.after
        return visual, inside

    def _peak_begins(self) -> bool:
        device = self._model.device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        return bool(device.type == "cuda")

    def _peak_ends(self) -> int:
        model = self._model
        weights = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
        return int(torch.cuda.max_memory_allocated(model.device)) - weights

"""The efficiency table of papers on token pruning: its rows, and how they are printed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median, quantiles
from typing import Any

from vlprune.measure.fitted_table import Column, FittedTable
from vlprune.measure.flops import CONVENTIONS
from vlprune.measure.format import format_amount, format_kl, format_short_milliseconds
from vlprune.media.outputs import MARK

#: Names of how the LLM runs, by the value of `attach(..., cuda_graphs=)`.
RUNTIMES = {False: "eager", True: "CUDA graphs", "compile": "compiled, CUDA graphs"}
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
    "kl": "KL of 1st token",
    "agreement": "same answer",
}
#: The columns that are printed first, and also where there is no room for others.
MAIN_TITLES = [TITLES[name] for name in ("method", "visual_tokens", "faster", "kv_bytes", "first", "prefill")]
CAPTION = (
    "Medians and quartiles. question: its embedding, and the tokens in its space; selection: from there to what is "
    "kept. first token: from the call of generate to the first logits, vision and all preparation "
    "included, timed on its own, as the other columns wait for the device; faster: the first row's by this row's. "
    "MACs (paper): {paper}. FLOPs (prefill): {flops}. KV: the cache at the end, what its tokens take. "
    "peak: the most memory during generate, above the weights; graphs hold theirs all the time. KL: how far the first "
    "token's distribution is from that with all tokens, in nats; same answer: the share of prompts whose greedy answer "
    "is that with all tokens, token by token."
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
    """What one method, or the model without pruning, costs. Seconds are of one `generate`.

    `first` is the time to the first token: from the call of `generate` to the first logits, with all that lies between.
    It is a clock of its own, which does not wait for the device on the way, as that of the parts does.

    `cuda_graphs` says how the LLM ran, which is not what was asked for where graphs cannot be had.
    `visual_tokens` and `prompt_tokens` entered the LLM. `flops` are those of the prefill and `macs` the papers' count
    (see `vlprune.measure.CONVENTIONS`), None for a decoder without a formula, or a batch that loses tokens in it;
    `layer_average` is the mean of the visual tokens of a prompt that each of the LLM's layers sees. `decode`
    is per token, None if there is but one. `peak_bytes` is above the weights, None on a CPU. `kl` is
    the `next_token_kl` of the first answer token against all visual tokens, mean over the prompts, and `agreement` the
    share of prompts whose greedy answer is the same; None where they were not compared.
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
    kl: float | None = None
    agreement: float | None = None
    layer_average: float | None = None


@dataclass(frozen=True)
class EfficiencyReport:
    """The rows of the table and what they were measured with; the first row is the model without pruning."""

    rows: list[Row]
    about: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        """All numbers as a dictionary for JSON, times in seconds."""
        return {**self.about, "origin": MARK, "conventions": CONVENTIONS, "rows": [asdict(row) for row in self.rows]}

    def cells(self) -> list[list[str]]:
        """The table's cells as text, titles first, without columns that no row has; a spread takes two lines."""
        columns = [[title, *(_cell(name, row, self.rows[0]) for row in self.rows)] for name, title in TITLES.items()]
        return [list(line) for line in zip(*(column for column in columns if any(column[1:])))]

    @property
    def title(self) -> str:
        """The model, how it ran, the machine and the versions, in one line."""
        about = self.about
        return (
            f"{about['model']}, {RUNTIMES[self.rows[0].cuda_graphs]}, {about['device']}, {about['dtype']}, "
            f"batch {about['batch']}, {about['new_tokens']} new tokens, medians of {about['repeats']}, "
            f"torch {about['torch']}, transformers {about['transformers']}"
        )

    def to_markdown(self) -> str:
        """The table in Markdown, with its title and caption."""
        titles, *rows = self.cells()
        lines = [f"**{self.title}**", "", f"| {' | '.join(titles)} |", f"| --- |{' ---: |' * (len(titles) - 1)}"]
        lines += [f"| {' | '.join(cells)} |".replace("\n", "<br>") for cells in rows]
        return "\n".join([*lines, "", CAPTION.format(**CONVENTIONS), "", f"<!-- {MARK} -->", ""])

    def to_table(self, *, wide: bool = False) -> FittedTable:
        """The table for rich to print; `wide` keeps all columns also where they do not fit side by side."""
        titles, *rows = self.cells()
        main = [titles.index(title) for title in MAIN_TITLES if title in titles]
        order = main + [i for i in range(len(titles)) if i not in main]
        columns = [Column(titles[i], number=i > 0, extra=i not in main) for i in order]
        caption = CAPTION.format(**CONVENTIONS)
        return FittedTable(columns, [[row[i] for i in order] for row in rows], self.title, caption, wide)


def _cell(name: str, row: Row, whole: Row) -> str:
    """The text of one cell; `whole` is the row without pruning."""
    if name == "method":
        return row.method if row.cuda_graphs == whole.cuda_graphs else f"{row.method}\n({RUNTIMES[row.cuda_graphs]})"
    if name == "faster":
        return f"{whole.first.median / row.first.median:.2f}×" if row is not whole and row.first.median else ""
    value = getattr(row, name)
    if value is None or (name in ("question", "selection") and row is whole):
        return ""
    if name in ("kl", "agreement"):
        return "" if row is whole else format_kl(value) if name == "kl" else f"{100 * value:.0f} %"
    if isinstance(value, Spread):
        middle, low, high = (format_short_milliseconds(part) for part in (value.median, value.low, value.high))
        return f"{middle}\n{low}–{high}"
    if name.endswith("_bytes"):
        return f"{value / 2**20:,.2f}" if value < 2**24 else f"{value / 2**20:,.0f}"
    return format_amount(value) if name in ("flops", "macs") else f"{value:,}"

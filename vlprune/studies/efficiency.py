"""The paper's efficiency table: what methods cost at the same number of visual tokens, beside the printed figures.

Models have their published sizes and random weights, so that no checkpoint is needed. They answer nothing: accuracy
comes from a finished run of `vlprune eval`, if one is named.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isclose
from pathlib import Path
from typing import Any, NamedTuple

from vlprune.budget import Budget
from vlprune.errors import UserError
from vlprune.evaluation.run_folder import read_manifest
from vlprune.measure.architectures import build_text_tower, get_architecture
from vlprune.measure.efficiency import count_generate_calls, measure_efficiency
from vlprune.measure.efficiency_report import RUNTIMES, EfficiencyReport, Row
from vlprune.measure.fitted_table import Column, FittedTable
from vlprune.measure.flops import LLMShape
from vlprune.measure.format import format_short_milliseconds
from vlprune.media.outputs import MARK
from vlprune.methods import Method, PyramidDrop, get_method
from vlprune.methods.in_llm import scale_layers
from vlprune.studies.ablation import Parts
from vlprune.studies.paper import ALL_TOKENS, table

#: The visual tokens that the paper keeps of each tile of 576, and the tiles of each model: one in nine in all.
PER_TILE = 64
TILES = {"llava-1.5-7b": 1, "llava-1.5-13b": 1, "llava-next-7b": 5, "llava-next-13b": 5}
PAPER_MODEL = "llava-next-7b"  # the only one whose costs the paper prints
WITHOUT_DPP = "script without DPP"
IN_LLM = ("fastv", "pyramiddrop", "sparsevlm")
BEFORE_LLM = ("visionzip", "divprune", "script", WITHOUT_DPP, "script_plus")
QUESTION = "Is there a snowboard in the image?"
WEIGHTS_NOTE = "random weights of real size"
TITLES = ("method", "FLOPs T", "prefill ms", "decode ms", "KV MiB", "memory GB", "right", "choosing ms", "tokens")
CAPTION = (
    "In brackets: times less than all tokens. FLOPs: two per multiply-add, of the LLM's prefill, over visual tokens "
    "and their newlines alone, T(8nd² + 4n²d + 6ndm), which is how the paper comes to its 41.7 T (its "
    "accuracy tables print half of it); each layer by the tokens it sees. "
    "prefill: the LLM's forward of the prompt and choosing, which is the question's "
    "embedding by CLIP's text tower, that of the visual tokens in its space, and selection; methods inside the LLM "
    "choose in its forward. Vision is left out. KV: the whole cache at the end, text and new tokens too. memory: the "
    "peak, weights included, and CLIP's text tower where the method needs it. tokens: visual ones that a layer sees on "
    "average, newlines included: the budget is {budget}, on average over the layers for methods inside the LLM; "
    "PyramidDrop cuts before layers {layers}: with its own depths it cannot come down to that. "
    "without DPP: the graph, and the most relevant tokens. {accuracy}{paper}"
)
PAPER_NOTE = (
    " paper: its table on POPE, on an H100; it calls the prefill's unit ms/token, and does not say what its prefill "
    "and memory include; its FLOPs and KV are those of 2,880 or 320 tokens, and an F1 score stands under right."
)


class Accuracy(NamedTuple):
    """Shares of right answers, or another `measure`, by method at the table's budget, and the run they are of."""

    shares: Mapping[str, float]
    source: str
    measure: str = "% of the answers"


def paper_methods(name: str, layers: int) -> dict[str, Method]:
    """The methods of the paper's table and ScriptPlus, by the names of their rows, for a model of `layers` LLM layers.

    >>> [f"{row}: {method.keep}" for row, method in paper_methods("llava-next-7b", 32).items()][2:5]
    ['sparsevlm: 320 tokens per layer on average', 'visionzip: 64 per tile', 'divprune: 64 per tile']
    """
    if name not in TILES:
        raise ValueError(f"name={name!r}: choose from {', '.join(TILES)}.")
    quota = Budget(per_tile=PER_TILE) if TILES[name] > 1 else PER_TILE
    average = Budget(layer_average=PER_TILE * TILES[name])
    found: dict[str, Method] = {row: get_method(row, keep=average) for row in IN_LLM}
    found["pyramiddrop"] = PyramidDrop(average, _pyramid_layers(layers))
    for row in BEFORE_LLM:
        found[row] = Parts(quota, dpp=False) if row == WITHOUT_DPP else get_method(row, keep=quota)
    return found


def _pyramid_layers(layers: int) -> tuple[int, ...]:
    """Where PyramidDrop cuts here: as early as SparseVLM."""
    return scale_layers((2, 6, 15), layers)


def count_calls(name: str, repeats: int) -> int:
    """How often `measure_paper_table` calls `generate`."""
    return count_generate_calls(paper_methods(name, LLMShape.of(get_architecture(name).config()).layers), repeats)


def measure_paper_table(
    name: str, *, device: str = "cuda", text: int = 64, accuracy: Accuracy | None = None, **options: Any
) -> PaperEfficiency:
    """Build the model with random weights, with CLIP's text tower beside it, and measure every row.

    `text` are the words around the image; `options` go to `measure_efficiency`.
    """
    one = get_architecture(name)
    model = one.build(device)
    return measure_rows(
        name,
        model,
        one.inputs(model, text),
        paper_methods(name, LLMShape.of(model).layers),
        title=f"{name}, {WEIGHTS_NOTE}",
        dual_encoder=build_text_tower(model),
        accuracy=accuracy,
        **options,
    )


def measure_rows(
    name: str,
    model: Any,
    inputs: dict[str, Any],
    methods: Mapping[str, Method],
    *,
    title: str,
    dual_encoder: Any,
    accuracy: Accuracy | None = None,
    **options: Any,
) -> PaperEfficiency:
    """Measure all tokens and the `methods`, by the names of their rows, on a model that is there, asked `QUESTION`.

    `name` says whose table it is (one of `TILES`), `title` what is measured; `options` go to `measure_efficiency`.
    """
    report = measure_efficiency(
        model, inputs, methods, name=title, query=QUESTION, dual_encoder=dual_encoder, **options
    )
    encoder = dual_encoder[0] if isinstance(dual_encoder, tuple) else dual_encoder
    weights = _weights([model])
    tower = 0 if encoder is None else sum(_weights([model, encoder]).values()) - sum(weights.values())
    memory = {}
    for row in report.rows:
        reads = row.method in methods and methods[row.method].reads_question
        spare = 0 if reads else tower  # it lay there all the time
        memory[row.method] = None if row.peak_bytes is None else sum(weights.values()) + row.peak_bytes - spare
    layers = _pyramid_layers(LLMShape.of(model).layers)
    return PaperEfficiency(name, report, memory, accuracy or Accuracy({}, ""), layers)


def _weights(modules: Sequence[Any]) -> dict[int, int]:
    """The bytes of each tensor of some modules, by its address: what they share counts once."""
    tensors = [tensor for module in modules for tensor in (*module.parameters(), *module.buffers())]
    return {tensor.data_ptr(): tensor.nbytes for tensor in tensors}


def read_accuracy(folder: Path, name: str) -> Accuracy:
    """The accuracy of a finished `vlprune eval` for each row: the same method, at as many tokens per layer.

    Methods inside the LLM cannot reach every average: 2 % more or less is taken for the same.
    """
    settings = read_manifest(folder)["settings"]
    try:
        scores = json.loads((folder / "result.json").read_text(encoding="utf-8"))["data"]["scores"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"--accuracy {folder}: it holds no finished run of `vlprune eval`.") from error
    shares = {ALL_TOKENS: scores[ALL_TOKENS]["accuracy"]} if ALL_TOKENS in scores else {}
    for cell, score in scores.items():
        method = cell.partition("@")[0]
        if method in (*IN_LLM, *BEFORE_LLM) and isclose(score["layer_average"], PER_TILE * TILES[name], rel_tol=0.02):
            shares[method] = score["accuracy"]
    asked = sum(next(iter(scores.values()))["asked"].values())
    return Accuracy(shares, f"{folder}: {settings['model']}, {asked:,} questions")


@dataclass(frozen=True)
class PaperEfficiency:
    """The measured rows, the peak memory of each with the weights (None on a CPU), and where accuracy comes from."""

    name: str
    report: EfficiencyReport
    memory: Mapping[str, int | None]
    accuracy: Accuracy
    pyramid_layers: tuple[int, ...]

    def to_json(self) -> dict[str, Any]:
        """All numbers for JSON: times in seconds, memory in bytes, and the paper's own rows."""
        paper = {row: dict(table("efficiency").row(row)) for row in self._paper_rows}
        found = {"memory_bytes": dict(self.memory), "accuracy": self.accuracy._asdict(), "paper": paper}
        return {**self.report.to_json(), **found}

    @property
    def _paper_rows(self) -> list[str]:
        return table("efficiency").rows if self.name == PAPER_MODEL else []

    def cells(self) -> list[list[str]]:
        """The cells of the rows as text; where the paper has the row, its figures are the second line of a cell."""
        printed = {row: _paper_line(table("efficiency").row(row)) for row in self._paper_rows}
        rows = []
        for row in self.report.rows:
            cells = self._line(row)
            if row.method in printed:
                cells = [f"{here}\n{paper}" for here, paper in zip(cells, printed[row.method], strict=True)]
            rows.append(cells)
        return rows

    def _line(self, row: Row) -> list[str]:
        """What was measured of one row."""
        whole = self.report.rows[0]
        memory, right = self.memory[row.method], self.accuracy.shares.get(row.method)
        mark = "" if row.cuda_graphs == whole.cuda_graphs else "*"
        return [
            row.method.replace(WITHOUT_DPP, "  without DPP") + mark,
            _with_ratio(f"{2e-12 * (row.macs or 0):.1f}", whole.macs or 0, row.macs or 0),
            _with_ratio(format_short_milliseconds(_prefill(row)), _prefill(whole), _prefill(row)),
            "-" if row.decode is None else format_short_milliseconds(row.decode.median),
            f"{row.kv_bytes / 2**20:,.0f}",
            "-" if memory is None else f"{memory / 1e9:.1f}",
            "-" if right is None else f"{100 * right:.1f}",
            "-" if row.method in (ALL_TOKENS, *IN_LLM) else format_short_milliseconds(_choosing(row)),
            "" if row.layer_average is None else f"{row.layer_average:,.0f}",
        ]

    @property
    def caption(self) -> str:
        """How to read the table."""
        source = self.accuracy.source
        told = f"right: {self.accuracy.measure} in {source}." if source else "right: random weights answer nothing."
        if len({row.cuda_graphs for row in self.report.rows}) > 1:
            told += f" *: ran {RUNTIMES[False]}."
        quota = f"{PER_TILE} of each of {TILES[self.name]} tiles" if TILES[self.name] > 1 else str(PER_TILE)
        layers = ", ".join(map(str, self.pyramid_layers))
        paper = PAPER_NOTE if self.name == PAPER_MODEL else ""
        return CAPTION.format(budget=quota, layers=layers, accuracy=told, paper=paper)

    def to_markdown(self) -> str:
        """The table in Markdown, with its title and caption."""
        lines = [f"**{self.report.title}**", "", f"| {' | '.join(TITLES)} |", "| --- |" + " ---: |" * (len(TITLES) - 1)]
        lines += [f"| {' | '.join(cells)} |".replace("\n", "<br>") for cells in self.cells()]
        return "\n".join([*lines, "", self.caption, "", f"<!-- {MARK} -->", ""])

    def to_table(self, *, wide: bool = False) -> FittedTable:
        """The table for rich to print; `wide` keeps all columns also where they do not fit side by side."""
        extra = ("choosing ms", "tokens")
        columns = [Column(title, number=i > 0, extra=title in extra) for i, title in enumerate(TITLES)]
        return FittedTable(columns, self.cells(), self.report.title, self.caption, wide)


def _choosing(row: Row) -> float:
    return row.question.median + row.selection.median


def _prefill(row: Row) -> float:
    """Seconds of the prefill, choosing included."""
    return row.prefill.median + _choosing(row)


def _with_ratio(text: str, whole: float, value: float) -> str:
    """A figure, and how many times less it is than without pruning.

    >>> _with_ratio("4.2", 41.7, 4.2), _with_ratio("41.7", 41.7, 41.7)
    ('4.2 (9.9×)', '41.7')
    """
    return text if whole == value or not value else f"{text} ({whole / value:.1f}×)"


def _paper_line(values: Mapping[str, float]) -> list[str]:
    """What the paper prints of one row, in the order of `TITLES`; its ratios are as printed."""

    def with_printed(name: str, ratio: str, digits: int) -> str:
        text = f"{values[name]:.{digits}f}"
        return text if values[ratio] == 1 else f"{text} ({values[ratio]:.1f}×)"

    return [
        "  paper",
        with_printed("tflops", "flops_ratio", 1),
        with_printed("prefill_ms", "prefill_ratio", 0),
        f"{values['decode_ms']:.0f}",
        f"{values['kv_mb']:,.0f}",
        f"{values['memory_gb']:.1f}",
        f"{values['f1']:.1f}",
        "",
        "",
    ]

"""The costs of the paper's efficiency table, measured on the checkpoint whose answers were scored."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from vlprune.evaluation.load_model import LoadedModel, with_loaded_clip
from vlprune.evaluation.one_question import prepare_inputs
from vlprune.evaluation.result import ResultTable
from vlprune.measure.efficiency import count_generate_calls
from vlprune.studies.efficiency import PAPER_MODEL, QUESTION, TITLES, Accuracy, PaperEfficiency, measure_rows
from vlprune.studies.reproduction import Cell, Plan

if TYPE_CHECKING:
    from PIL import Image

NEW_TOKENS, REPEATS = 9, 5


def cells_by_row(plan: Plan, refused: Collection[str] = ()) -> dict[str, Cell]:
    """The cells whose costs are measured, by the names of their rows; `refused` are those that cannot run.

    >>> from vlprune.studies.reproduction import make_plan
    >>> list(cells_by_row(make_plan("efficiency", rows=["script", "divprune"]), ["divprune@320"]))
    ['all tokens', 'script']
    """
    (usual,) = plan.paper.budgets
    own = [cell for cell in plan.cells if cell.name not in refused]
    return {cell.row if cell.keep == usual else cell.name: cell for cell in own}


def count_calls(plan: Plan, refused: Collection[str] = ()) -> int:
    """How often `measure_costs` calls `generate`."""
    return count_generate_calls(list(cells_by_row(plan, refused))[1:], REPEATS)


def measure_costs(
    plan: Plan,
    loaded: LoadedModel,
    f1: Mapping[str, float],
    *,
    refused: Collection[str] = (),
    cuda_graphs: bool | str = False,
    tick: Callable[[], None] = lambda: None,
) -> PaperEfficiency:
    """Measure what an answer costs with all tokens and with each method: a question about an image of noise.

    `f1` are POPE's F1 scores by cell, in percent, which stand beside the costs.
    """
    cells = cells_by_row(plan, refused)
    methods = {row: cell.method for row, cell in cells.items() if cell.method is not None}
    loaded = with_loaded_clip(loaded) if any(method.reads_question for method in methods.values()) else loaded
    shares = {row: f1[cell.name] / 100 for row, cell in cells.items() if cell.name in f1}
    return measure_rows(
        PAPER_MODEL,
        loaded.model,
        prepare_inputs(loaded, _noise(plan.setup.resolution or 336), QUESTION),
        methods,
        title=loaded.name,
        dual_encoder=loaded.clip,
        accuracy=Accuracy(shares, "the table above", "F1 on POPE"),
        processor=loaded.processor,
        cuda_graphs=cuda_graphs,
        new_tokens=NEW_TOKENS,
        repeats=REPEATS,
        tick=tick,
    )


def costs_table(costs: PaperEfficiency) -> ResultTable:
    """The costs as a table of a result: the paper's figures are rows of their own, below ours."""
    rows: list[list[str]] = []
    for cells in costs.cells():
        lines = [cell.split("\n") for cell in cells]
        rows += [list(line) for line in zip(*lines, strict=True)]
    return ResultTable(costs.report.title, TITLES, rows, costs.caption)


def _noise(size: int) -> Image.Image:
    """An image in which no two patches are alike."""
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (size, size, 3), dtype=np.uint8))

"""Accuracy against budget, from the `result.json` of a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

from vlprune.errors import UserError
from vlprune.evaluation.reference_methods import ALL_TOKENS

MAX_BYTES = 64 * 2**20


class AccuracyPoint(NamedTuple):
    """A method at a budget: tokens that entered the LLM, right answers in percent, and the ends of the interval."""

    method: str
    tokens: float
    right: float
    low: float
    high: float


def read_accuracy(path: str | Path) -> list[AccuracyPoint]:
    """The points of a run of `vlprune eval`, by method and then by tokens; `UserError` for another file.

    >>> import tempfile
    >>> score = {"entering": 64.0, "accuracy": 0.5, "interval": [0.4, 0.6]}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     file = Path(folder) / "result.json"
    ...     file.write_text(json.dumps({"data": {"scores": {"script@64": score}}})) and read_accuracy(file)
    [AccuracyPoint(method='script', tokens=64.0, right=50.0, low=40.0, high=60.0)]
    """
    path = Path(path)
    refusal = f"{path.name!r} is not the result.json of a run of `vlprune eval`."
    if path.stat().st_size > MAX_BYTES:
        raise UserError(refusal)
    try:
        scores: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["data"]["scores"]
        points = [_point(cell, score) for cell, score in scores.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(refusal) from error
    if not points:
        raise UserError(refusal)
    return sorted(points)


def _point(cell: str, score: dict[str, Any]) -> AccuracyPoint:
    low, high = score["interval"]
    method = cell if cell == ALL_TOKENS else cell.rpartition("@")[0]
    return AccuracyPoint(method, *map(float, (score["entering"], 100 * score["accuracy"], 100 * low, 100 * high)))

"""The visual tokens of images as they enter the LLM, and how alike they are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from vlprune.budget import Budget
from vlprune.errors import UserError
from vlprune.evaluation.answers import Evaluation, generate_answers
from vlprune.evaluation.questions import ImageQuestion
from vlprune.methods import Method
from vlprune.types import Query, Selection, TokenView


@dataclass(frozen=True)
class ImageTokens:
    """One image, or a tile of it: a question about it, its tokens (n, d) as they enter the LLM, and their grid.

    `tower` (n, d_v) are the vision tower's states of the same tokens, None where the model does not show them. All is
    on the CPU, in float32.
    """

    question: ImageQuestion
    features: Tensor
    grid: tuple[int, int]  # rows, columns
    tower: Tensor | None = None


@dataclass(frozen=True)
class _ViewRecorder(Method):
    """Keeps one token, and collects the views that it is given."""

    views: list[TokenView] = field(default_factory=list, compare=False, repr=False)
    name: ClassVar[str] = "view_recorder"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        self.views.append(view)
        return Selection(kept=torch.zeros(len(view.features), 1, dtype=torch.int64, device=view.features.device))


def collect_image_tokens(evaluation: Evaluation, questions: Sequence[ImageQuestion] | None = None) -> list[ImageTokens]:
    """The tokens of each image that is asked about, all tiles together, in the questions' order."""
    return sorted(stream_image_tokens(evaluation, questions), key=lambda one: one.question.number)


def stream_image_tokens(
    evaluation: Evaluation, questions: Sequence[ImageQuestion] | None = None, *, tiles: str = "together"
) -> Iterator[ImageTokens]:
    """The tokens of each image that is asked about, once, as the batches come: no more than one batch is held.

    An image that is cut into tiles is one line of tokens (`tiles="together"`), gives each tile with the grid of its own
    ("apart"), or is refused ("refused").
    """
    questions = evaluation.questions if questions is None else questions
    one_per_image = list({question.image_name: question for question in questions}.values())
    recorder = _ViewRecorder(keep=Budget(per_tile=1, per_frame=1) if tiles == "apart" else 1)
    evaluation.expect(len(one_per_image))
    for answered in generate_answers(
        evaluation.loaded, one_per_image, {recorder.name: recorder}, batch=evaluation.batch
    ):
        if answered.reason is not None:
            raise UserError(answered.reason)
        evaluation.tick("encoding images", len(answered.questions))
        cut = any(len(records) != 1 or len(records[0].parts) != 1 for records in answered.records)
        if cut and tiles == "refused":
            raise UserError(
                f"--model {evaluation.loaded.name}: its images are cut into tiles, and this study needs one grid."
            )
        while recorder.views:
            yield from _split_view(recorder.views.pop(0), answered.questions)


def _split_view(view: TokenView, questions: Sequence[ImageQuestion]) -> Iterator[ImageTokens]:
    """The images or tiles of a view, which has as many of each question's image, one question after another."""
    each = len(view.features) // len(questions)
    tower = view.tower if view.tower is not None and view.tower.shape[1] == view.n else None
    for i, row in enumerate(view.features):
        states = None if tower is None else tower[i].float().cpu()
        yield ImageTokens(questions[i // each], row.float().cpu(), view.grid, states)


def cosine_matrix(features: Tensor) -> Tensor:
    """(n, n) cosines of all pairs of tokens (n, d)."""
    unit = torch.nn.functional.normalize(features, dim=1)
    return unit @ unit.T


@lru_cache(maxsize=8)
def neighbour_mask(grid: tuple[int, int]) -> Tensor:
    """(n, n) which tokens of a grid are next to each other, diagonally too; not with themselves.

    >>> neighbour_mask((2, 3)).sum(1).tolist()
    [3, 5, 3, 3, 5, 3]
    """
    return grid_distances(grid).amax(0) == 1


@lru_cache(maxsize=8)
def grid_distances(grid: tuple[int, int]) -> Tensor:
    """(2, n, n) how many rows and how many columns two tokens of a grid are apart."""
    rows, columns = grid
    y = torch.arange(rows).repeat_interleave(columns)
    x = torch.arange(columns).repeat(rows)
    return torch.stack([(y[:, None] - y).abs(), (x[:, None] - x).abs()])


def neighbour_similarity(cosine: Tensor, grid: tuple[int, int]) -> Tensor:
    """(n,) each token's mean cosine to the tokens next to it, from all cosines (n, n).

    >>> neighbour_similarity(torch.tensor([[1.0, 0.5, 0.0], [0.5, 1.0, 0.1], [0.0, 0.1, 1.0]]), (1, 3)).tolist()
    [0.5, 0.30000001192092896, 0.10000000149011612]
    """
    mask = neighbour_mask(grid)
    return (cosine * mask).sum(1) / mask.sum(1)

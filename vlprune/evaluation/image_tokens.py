"""The visual tokens of images as they enter the LLM, and how alike they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from vlprune.errors import UserError
from vlprune.evaluation.answers import Evaluation, generate_answers
from vlprune.evaluation.questions import ImageQuestion
from vlprune.methods import Method
from vlprune.types import Query, Selection, TokenView


@dataclass(frozen=True)
class ImageTokens:
    """One image: a question about it, its tokens (n, d) as they enter the LLM, on the CPU, and their grid."""

    question: ImageQuestion
    features: Tensor
    grid: tuple[int, int]  # rows, columns


@dataclass(frozen=True)
class _ViewRecorder(Method):
    """Keeps one token, and collects the views that it is given."""

    views: list[TokenView] = field(default_factory=list, compare=False, repr=False)
    name: ClassVar[str] = "view_recorder"

    def select(self, view: TokenView, query: Query | None) -> Selection:
        self.views.append(view)
        return Selection(kept=torch.zeros(len(view.features), 1, dtype=torch.int64, device=view.features.device))


def collect_image_tokens(
    evaluation: Evaluation, questions: Sequence[ImageQuestion] | None = None, allow_tiles: bool = False
) -> list[ImageTokens]:
    """The tokens of each image that is asked about, once; refuses images that are cut into tiles unless allowed."""
    questions = evaluation.questions if questions is None else questions
    one_per_image = list({question.image_name: question for question in questions}.values())
    recorder, found = _ViewRecorder(keep=1), []
    evaluation.expect(len(one_per_image))
    for answered in generate_answers(
        evaluation.loaded, one_per_image, {recorder.name: recorder}, batch=evaluation.batch
    ):
        if answered.reason is not None:
            raise UserError(answered.reason)
        evaluation.tick("encoding images", len(answered.questions))
        if not allow_tiles and any(len(records) != 1 or len(records[0].parts) != 1 for records in answered.records):
            raise UserError(
                f"--model {evaluation.loaded.name}: its images are cut into tiles, and this study needs one grid."
            )
        for view in recorder.views:
            rows = view.features.float().cpu()
            found += [ImageTokens(question, row, view.grid) for question, row in zip(answered.questions, rows)]
        recorder.views.clear()
    return sorted(found, key=lambda one: one.question.number)


def cosine_matrix(features: Tensor) -> Tensor:
    """(n, n) cosines of all pairs of tokens (n, d)."""
    unit = torch.nn.functional.normalize(features, dim=1)
    return unit @ unit.T


def neighbour_mask(grid: tuple[int, int]) -> Tensor:
    """(n, n) which tokens of a grid are next to each other, diagonally too; not with themselves.

    >>> neighbour_mask((2, 3)).sum(1).tolist()
    [3, 5, 3, 3, 5, 3]
    """
    return grid_distances(grid).amax(0) == 1


def grid_distances(grid: tuple[int, int]) -> Tensor:
    """(2, n, n) how many rows and how many columns two tokens of a grid are apart."""
    rows, columns = grid
    y = torch.arange(rows).repeat_interleave(columns)
    x = torch.arange(columns).repeat(rows)
    return torch.stack([(y[:, None] - y).abs(), (x[:, None] - x).abs()])


def neighbour_similarity(image: ImageTokens) -> Tensor:
    """(n,) each token's mean cosine to the tokens next to it."""
    mask = neighbour_mask(image.grid)
    return (cosine_matrix(image.features) * mask).sum(1) / mask.sum(1)

"""The tokens that lie in boxes of an image, by way of the model's own image processor."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vlprune.errors import UserError
from vlprune.evaluation.questions import Box, ImageQuestion, resize_to

BLACK, WHITE = (0, 0, 0), (255, 255, 255)
LEAST = 0.5  # the share of a token's patch that must lie in the box


def tokens_in_boxes(processor: Any, question: ImageQuestion, grid: tuple[int, int]) -> list[Tensor]:
    """The tokens of a grid (rows, columns) of which half lies in each box; of a smaller box the one with most of it.

    A picture of each box goes through the image processor as the image does, so that resizing, cropping and padding
    move it as they move the image. A box that the processor cuts off is left out.
    """
    coverage = box_coverage(processor, question, grid)
    found = []
    for share in coverage.flatten(1):
        inside = (share >= LEAST).nonzero()[:, 0]
        if len(inside) or share.max() > 1e-3:
            found.append(inside if len(inside) else share.argmax()[None])
    return found


def box_coverage(processor: Any, question: ImageQuestion, grid: tuple[int, int]) -> Tensor:
    """(boxes, rows, columns) the share of each token's patch that lies in each box."""
    from PIL import Image

    if not question.boxes:
        return torch.zeros(0, *grid)
    size = question.image_size()
    plain = [Image.new("RGB", size, fill) for fill in (BLACK, WHITE)]
    drawn = [*(_picture(size, box) for box in question.boxes), *plain]
    pictures = [resize_to(picture, question.resolution) for picture in drawn]
    images = getattr(processor, "image_processor", processor)
    pixels = images(images=pictures, return_tensors="pt")["pixel_values"]
    if pixels.ndim == 4 and len(pixels) == len(pictures):
        levels = pixels.float().mean(1)
    elif pixels.ndim == 2:  # patches of the whole image, which is only resized
        levels = torch.stack([_levels(picture) for picture in pictures])
    else:
        raise UserError("its images are cut into tiles, and boxes need one grid.")
    black, white = levels[-2], levels[-1]
    seen = (white - black).abs() > 1e-3  # the rest is padding
    shares = torch.where(seen, (levels[:-2] - black) / torch.where(seen, white - black, 1.0), 0.0)
    return torch.nn.functional.adaptive_avg_pool2d(shares[:, None], grid)[:, 0]


def _picture(size: tuple[int, int], box: Box) -> Any:
    """A black image that is white inside the box."""
    from PIL import Image, ImageDraw

    picture = Image.new("RGB", size, BLACK)
    left, top, right, bottom = box
    ImageDraw.Draw(picture).rectangle((left, top, max(left, right - 1), max(top, bottom - 1)), fill=WHITE)
    return picture


def _levels(picture: Any) -> Tensor:
    """(height, width) the grey levels of a picture."""
    width, height = picture.size
    return torch.tensor(list(picture.convert("L").tobytes()), dtype=torch.float32).view(height, width)

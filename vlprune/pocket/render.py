"""Draw scenes as images, on any device, from signed distances: no fonts, no files, no drawing library."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vlprune.pocket.world import COLORS, MAX_THINGS, SHAPES, SIZE, Dice, Scene

if TYPE_CHECKING:
    from PIL import Image

PALETTE = (
    (0.86, 0.12, 0.12),
    (0.96, 0.50, 0.08),
    (0.96, 0.86, 0.16),
    (0.13, 0.60, 0.20),
    (0.18, 0.82, 0.86),
    (0.12, 0.25, 0.86),
    (0.52, 0.14, 0.66),
    (0.98, 0.62, 0.76),
)
DARK_DIGIT = (0, 0, 1, 0, 1, 0, 0, 1)  # 1 for the light colours, on which digits are dark
# seven strokes of a digit: centre x, y and half-lengths along x, y, in units of half the digit's height
STROKES = (
    (0.0, -1.0, 0.5, 0.0),
    (0.5, -0.5, 0.0, 0.5),
    (0.5, 0.5, 0.0, 0.5),
    (0.0, 1.0, 0.5, 0.0),
    (-0.5, 0.5, 0.0, 0.5),
    (-0.5, -0.5, 0.0, 0.5),
    (0.0, 0.0, 0.5, 0.0),
)
# which strokes each digit has
DIGIT_STROKES = (
    "1111110",
    "0110000",
    "1101101",
    "1111001",
    "0110011",
    "1011011",
    "1011111",
    "1110000",
    "1111111",
    "1111011",
)
COLUMNS = 8  # numbers that `pack_scenes` describes a thing by
NOISE = 0.02  # standard deviation of the backdrop's noise


def pack_scenes(scenes: Sequence[Scene]) -> tuple[np.ndarray, np.ndarray]:
    """Scenes as arrays: things (B, 12, 8), absent ones with radius 0, and backgrounds (B, 19)."""
    things = np.zeros((len(scenes), MAX_THINGS, COLUMNS), dtype=np.float32)
    for row, scene in zip(things, scenes):
        for slot, t in zip(row, scene.things):
            slot[:] = (
                t.x,
                t.y,
                t.radius,
                t.angle,
                t.shade,
                SHAPES.index(t.shape),
                COLORS.index(t.color),
                t.digit,
            )
    return things, np.array([scene.background for scene in scenes], dtype=np.float32)


def paint_scenes(things: Tensor, background: Tensor, noise: Tensor) -> Tensor:
    """Draw packed scenes: (B, 12, 8), (B, 19) and noise (B, 192, 192) → colours (B, 3, 192, 192) in [0, 1]."""
    line = torch.arange(SIZE, device=things.device, dtype=torch.float32) + 0.5
    x, y = line[None, None, None, :], line[None, None, :, None]
    distance, u, v = _signed_distance(things, x, y)  # (B, 12, 192, 192)
    radius = things[..., 2, None, None]
    body = (0.5 - distance).clamp(0, 1)
    ink = (0.5 - _digit_distance(things, u, v) * radius).clamp(0, 1) * (distance < 2)

    x, y = x[:, 0], y[:, 0]
    waves = background[:, 3:].view(-1, 4, 4, 1, 1)
    turns = waves[:, :, 0] * x[:, None] + waves[:, :, 1] * y[:, None] + waves[:, :, 2]
    shade = (waves[:, :, 3] * torch.cos(turns)).sum(1)
    backdrop = background[:, :3, None, None] + shade[:, None] + NOISE * noise[:, None]

    color_index = things[..., 6].long()
    color = torch.tensor(PALETTE, device=things.device)[color_index] * (1 + 0.08 * things[..., 4, None])
    dark = torch.tensor(DARK_DIGIT, device=things.device, dtype=torch.float32)[color_index][..., None, None]
    covered = body.sum(1)[:, None].clamp(max=1)
    channels = [(body * (color[..., c, None, None] * (1 - ink) + ink * (0.97 - 0.93 * dark))).sum(1) for c in range(3)]
    painted = torch.stack(channels, 1) + backdrop * (1 - covered)
    return (painted.clamp(0, 1) * 255).round() / 255


def images(scenes: Sequence[Scene]) -> list[Image.Image]:
    """Draw scenes as images of 192×192 pixels.

    >>> from vlprune.pocket import scenes
    >>> images(scenes("test", 1))[0].size
    (192, 192)
    """
    from PIL import Image

    drawn = []
    for scene in scenes:
        things, background = (torch.from_numpy(a) for a in pack_scenes([scene]))
        colours = paint_scenes(things[:, : len(scene.things)], background, _noise(scene)[None])[0]
        drawn.append(Image.fromarray((colours * 255).round().byte().permute(1, 2, 0).numpy()))
    return drawn


def things_under_grid(things: Tensor, grid: int, slack: float = 1.0) -> Tensor:
    """Index of the thing under the centre of each cell of a grid: (B, 12, 8) → (B, grid·grid), −1 for none.

    A centre up to `slack` pixels outside of a thing counts as covered by it.
    """
    line = (torch.arange(grid, device=things.device, dtype=torch.float32) + 0.5) * (SIZE / grid)
    distance, _, _ = _signed_distance(things, line[None, None, None, :], line[None, None, :, None])
    nearest, which = distance.flatten(2).min(1)
    return torch.where(nearest < slack, which, torch.full_like(which, -1))


def _noise(scene: Scene) -> Tensor:
    """The noise of a scene's backdrop, (192, 192), from its name."""
    bits = np.random.PCG64(Dice(f"noise {scene.name}").below(2**32))
    return torch.from_numpy(np.random.Generator(bits).standard_normal((SIZE, SIZE), dtype=np.float32))


def _signed_distance(things: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Signed distance in pixels from each thing's outline, negative inside, and coordinates on its axes, in radii."""
    part = things[..., None, None].unbind(2)
    radius = part[2].clamp(min=1e-3)
    cos, sin = torch.cos(part[3]), torch.sin(part[3])
    dx, dy = (x - part[0]) / radius, (y - part[1]) / radius
    u, v = cos * dx + sin * dy, cos * dy - sin * dx
    a, b = u.abs(), v.abs()
    turn = 2 * math.pi / 5  # a star is one slanted edge, folded ten times
    angle = torch.remainder(torch.atan2(u, -v) + turn / 2, turn) - turn / 2
    length = torch.sqrt(u * u + v * v + 1e-12)
    along, across = length * torch.cos(angle), length * torch.sin(angle).abs()
    lobe = torch.sqrt((a - 0.43) ** 2 + (v + 0.3) ** 2 + 1e-12) - 0.54
    outlines = (
        length - 0.95,
        torch.maximum(a, b) - 0.8,
        torch.maximum(v, 0.866 * a - 0.5 * v) - 0.56,
        0.64 * (a / 0.78 + b - 1.08),
        0.53 * (along - 1.18) + 0.848 * across,
        torch.minimum(torch.maximum(a - 0.38, b - 0.98), torch.maximum(a - 0.98, b - 0.38)),
        torch.minimum(lobe, torch.maximum(0.74 * a + 0.67 * v - 0.66, -v - 0.3)),
        torch.maximum(a - 1.08, b - 0.6),
    )
    distance = sum(torch.where(part[5] == i, outline, 0.0) for i, outline in enumerate(outlines))
    return torch.where(part[2] > 0, distance * radius, 1e4), u, v


def _digit_distance(things: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """Signed distance, in radii, from the strokes of each thing's digit."""
    lit = torch.tensor([[c == "1" for c in row] for row in DIGIT_STROKES], device=things.device)
    on = lit[things[..., 7].long()]
    nearest = torch.full_like(u, 1e4)
    half = 0.55
    for i, (x, y, w, h) in enumerate(STROKES):
        gap = torch.maximum(
            (u - half * 0.85 * x).abs() - half * 0.85 * w,
            (v - half * (y * 0.95) - 0.04).abs() - half * h * 0.95,
        )
        nearest = torch.where(on[..., i, None, None], torch.minimum(nearest, gap), nearest)
    return nearest - 0.1

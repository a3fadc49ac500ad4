"""A grid of tokens: cut into m cells of nearly equal size, and in an order that covers it evenly."""

import math
from functools import cache
from itertools import pairwise

import torch
from torch import Tensor

from .checks import check_count


def grid_cells(rows: int, columns: int, m: int) -> tuple[Tensor, Tensor]:
    """Cut a grid of rows × columns tokens into m rectangles, as equal and as square as can be.

    The rows are cut into r bands and each band into m/r cells, where r divides m if that can be done with cells
    that are on average at most twice as long in one direction as in the other. Otherwise r is what makes the
    cells most nearly square, and some bands have one cell more than others. Of equally good r the smaller wins.

    Args:
        rows, columns: at least 1.
        m: from 1 to rows · columns.

    Returns:
        (rows · columns,) int64, the cell of each token, and (m,) int64, the token in the middle of each cell (of
        two the first), ascending.

    >>> cell, middle = grid_cells(4, 4, 4)
    >>> cell.view(4, 4).tolist(), middle.tolist()
    ([[0, 0, 1, 1], [0, 0, 1, 1], [2, 2, 3, 3], [2, 2, 3, 3]], [0, 2, 8, 10])
    >>> grid_cells(4, 4, 7)[0].view(4, 4).tolist()
    [[0, 0, 1, 1], [2, 2, 3, 3], [4, 5, 6, 6], [4, 5, 6, 6]]
    """
    rows = check_count("rows", rows, 1, 2**31, "as many as an image can have")
    columns = check_count("columns", columns, 1, 2**31, "as many as an image can have")
    m = check_count("m", m, 1, rows * columns, "the number of tokens")

    def length(bands: int) -> float:
        """How far from square the cells are on average: 0 for squares, log 2 for twice as long as wide."""
        return abs(math.log(rows * m / (columns * bands * bands)))

    possible = range(math.ceil(m / columns), min(rows, m) + 1)
    even = [r for r in possible if m % r == 0 and length(r) < math.log(2) + 1e-9]
    bands = min(even or possible, key=length)
    cells, middles = torch.empty(rows, columns, dtype=torch.int64), []
    for band in range(bands):
        top, bottom = band * rows // bands, (band + 1) * rows // bands
        first, after = band * m // bands, (band + 1) * m // bands
        cuts = [cell * columns // (after - first) for cell in range(after - first + 1)]
        for cell, (left, right) in enumerate(pairwise(cuts), start=first):
            cells[top:bottom, left:right] = cell
            middles.append((top + bottom - 1) // 2 * columns + (left + right - 1) // 2)
    return cells.flatten(), torch.tensor(middles)


@cache
def even_order(rows: int, columns: int) -> Tensor:
    """All tokens of a grid in an order whose every beginning covers the grid evenly.

    The cells that the points i · (1/p, 1/p²) mod 1 fall into, i = 0, 1, …, with p³ = p + 1 (Roberts' R2 sequence); what
    4·n points miss follows by index.

    Returns:
        (rows · columns,) int64; shared, not to be changed.

    >>> even_order(2, 2).tolist(), even_order(1, 5).tolist()
    ([0, 3, 2, 1], [0, 2, 3, 1, 4])
    """
    n, p = rows * columns, 1.32471795724474602596
    at = torch.arange(4 * n, dtype=torch.float64)
    row, column = (at / p % 1 * rows).long(), (at / p**2 % 1 * columns).long()
    seen = dict.fromkeys((row * columns + column).tolist())
    return torch.tensor([*seen, *(token for token in range(n) if token not in seen)])


@cache  # for good: a recorded CUDA graph may read it
def even_key(rows: int, columns: int, device: torch.device) -> Tensor:
    """(rows · columns,) float32, higher for what comes earlier in `even_order`."""
    order = even_order(rows, columns)
    return torch.empty(len(order)).scatter_(0, order, -torch.arange(len(order), dtype=torch.float32)).to(device)

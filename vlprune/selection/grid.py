"""A grid of tokens, cut into m cells of nearly equal size."""

import math
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

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vlprune.selection import grid_cells

EXACT = settings(derandomize=True, deadline=None, max_examples=150)


@EXACT
@given(rows=st.integers(1, 12), columns=st.integers(1, 12), data=st.data())
def test_every_token_is_in_one_cell_and_every_cell_is_a_rectangle(rows, columns, data):
    m = data.draw(st.integers(1, rows * columns))
    cell, middle = grid_cells(rows, columns, m)
    assert (middle.diff() > 0).all()
    for i in range(m):
        inside = [divmod(token, columns) for token in range(rows * columns) if cell[token] == i]
        tall, wide = ({place[axis] for place in inside} for axis in (0, 1))
        assert len(inside) == len(tall) * len(wide) > 0
        assert max(tall) - min(tall) == len(tall) - 1
        assert max(wide) - min(wide) == len(wide) - 1
        assert cell[middle[i]] == i


@pytest.mark.parametrize(
    ("grid", "m", "shape"),
    [
        ((24, 24), 64, (8, 8)),
        ((24, 24), 192, (12, 16)),
        ((24, 24), 128, (8, 16)),
        ((24, 24), 16, (4, 4)),
        ((24, 24), 576, (24, 24)),
        ((24, 24), 1, (1, 1)),
        ((1, 40), 7, (1, 7)),
        ((40, 1), 7, (7, 1)),
        ((10, 40), 100, (5, 20)),
    ],
)
def test_whole_grids(grid, m, shape):
    cell = grid_cells(*grid, m)[0].view(grid)
    assert (len(cell[:, 0].unique()), len(cell[0].unique())) == shape
    sizes = cell.flatten().bincount()
    assert sizes.max() <= 2 * sizes.min()


def test_no_whole_grid_fits():
    """17 is prime: four bands of 4, 4, 4 and 5 cells."""
    cell = grid_cells(24, 24, 17)[0].view(24, 24)
    bands = [len(cell[row].unique()) for row in (0, 6, 12, 18)]
    assert sorted(bands) == [4, 4, 4, 5]


def test_wrong_arguments():
    for wrong, words in {
        (0, 3, 1): "rows=0: must be from 1",
        (3, 0, 1): "columns=0: must be from 1",
        (3, 4, 13): "m=13: must be from 1 to 12",
    }.items():
        with pytest.raises(ValueError, match=words):
            grid_cells(*wrong)

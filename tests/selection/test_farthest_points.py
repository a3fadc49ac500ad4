import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import selection_reference as reference
from vlprune.selection import farthest_points

EXACT = settings(derandomize=True, deadline=None, max_examples=40)


def tokens(seed, B, n, d):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(B, n, d, generator=g) + 0.5 * torch.randn(B, 1, d, generator=g)


@EXACT
@given(seed=st.integers(0, 10**6), n=st.integers(1, 14), d=st.integers(2, 9), data=st.data())
def test_matches_the_reference(seed, n, d, data):
    k = data.draw(st.integers(1, n))
    x = tokens(seed, 2, n, d)
    x[:, : data.draw(st.integers(0, 1))] = 0.0
    assert farthest_points(x, k).tolist() == [reference.farthest(image.double().tolist(), k) for image in x]


def test_duplicates_tie_to_the_lower_index_and_come_last():
    x = tokens(1, 1, 6, 8).repeat(1, 2, 1)
    order = farthest_points(x, 12)[0].tolist()
    assert order[0] == 0  # every token's nearest neighbour is its copy
    assert {i % 6 for i in order[:6]} == set(range(6))
    assert order[6:] == sorted(order[6:])


def test_a_prefix_answers_a_smaller_budget_and_blocks_change_nothing(monkeypatch):
    x = tokens(2, 2, 70, 16)
    longest = farthest_points(x, 70)
    assert (longest.sort(dim=1).values == torch.arange(70)).all()
    monkeypatch.setattr(sys.modules["vlprune.selection.farthest_points"], "BLOCK", 16)  # the function has its name
    for k in (1, 2, 4, 30):  # few rows, one at a time, and all of them at once
        assert torch.equal(farthest_points(x, k), longest[:, :k])


def test_scale_does_not_matter_and_wrong_input_is_refused():
    x = tokens(3, 1, 20, 8)
    assert torch.equal(farthest_points(1e-20 * x, 9), farthest_points(1e20 * x, 9))
    assert farthest_points(torch.zeros(0, 4, 3), 2).shape == (0, 2)
    with pytest.raises(ValueError, match="k=21: must be from 1 to 20, the number of tokens"):
        farthest_points(x, 21)
    x[0, 7, 2] = torch.nan
    with pytest.raises(ValueError, match="features=nan at batch 0, token 7, channel 2: must be finite in float32"):
        farthest_points(x, 3)

"""Whether a map points to something small, against the slow float64 reference and by its properties."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import methods_reference as reference
from vlprune.selection import relevance_focus


def maps_of(seed, B, n):
    """Maps with a high end that is small, in most of them."""
    return torch.rand(B, n, generator=torch.Generator().manual_seed(seed)) ** 5


@settings(derandomize=True, deadline=None, max_examples=60)
@given(seed=st.integers(0, 10**6), n=st.integers(1, 300))
def test_as_the_reference(seed, n):
    maps = maps_of(seed, 4, n)
    found = relevance_focus(maps)
    assert found.dtype == torch.float32
    assert found.tolist() == pytest.approx([reference.focus(one) for one in maps.tolist()], abs=1e-6)


def test_the_more_is_relevant_the_less_it_counts():
    maps = torch.zeros(1, 96).repeat(97, 1)
    for relevant, one in enumerate(maps):
        one[:relevant] = 0.9
    found = relevance_focus(maps).tolist()
    assert found == sorted(found, reverse=True)
    assert [relevant for relevant, focus in enumerate(found) if focus == 1] == list(range(7))  # up to a sixteenth
    assert [relevant for relevant, focus in enumerate(found) if focus == 0] == list(range(12, 97))  # from an eighth on


def test_where_tokens_lie_and_what_lies_beside_them_does_not_count():
    maps = maps_of(7, 3, 48)
    found = relevance_focus(maps)
    assert len(set(found.tolist())) == 3
    shuffled = maps[:, torch.randperm(48, generator=torch.Generator().manual_seed(1))]
    assert torch.allclose(relevance_focus(shuffled), found, atol=1e-6)
    assert torch.equal(torch.cat([relevance_focus(one) for one in maps.split(1)]), found)


def test_rounding_changes_little():
    """A token whose relevance is about one half does not jump."""
    maps = torch.zeros(2, 64)
    maps[:, :5] = 1.0
    maps[:, 5] = torch.tensor([0.5 - 1e-6, 0.5 + 1e-6])
    low, high = relevance_focus(maps).tolist()
    assert abs(low - high) < 1e-5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    maps = maps_of(2, 2, 40).to(dtype)
    assert torch.equal(relevance_focus(maps), relevance_focus(maps.float()))


def test_no_images_and_what_is_no_map():
    assert relevance_focus(torch.zeros(0, 6)).shape == (0,)
    with pytest.raises(ValueError, match="relevance of shape"):
        relevance_focus(torch.zeros(6))

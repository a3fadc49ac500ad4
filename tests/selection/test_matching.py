"""Which tokens merge into which, against the rule written out, and what holds of every matching."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.merging_reference import merge_most_similar
from vlprune.selection.matching import match_tokens


@st.composite
def cases(draw):
    """Keys (B, n, d) without near ties, and how many to merge."""
    n = draw(st.integers(2, 17))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    keys = torch.randn(draw(st.integers(1, 3)), n, draw(st.integers(3, 6)), generator=generator, dtype=torch.float64)
    return keys, draw(st.integers(1, n // 2))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_it_is_the_rule_of_the_paper(case):
    keys, count = case
    stay, go, into = match_tokens(keys, count)
    for row in range(len(keys)):
        groups = [[place] for place in stay[row].tolist()]
        for place, group in zip(go[row].tolist(), into[row].tolist()):
            groups[group].append(place)
        tokens = [{"state": torch.zeros(1), "places": [place]} for place in range(keys.shape[1])]
        wanted = [token["places"] for token in merge_most_similar(tokens, list(keys[row]), count)]
        assert sorted(map(sorted, groups)) == sorted(map(sorted, wanted))


@settings(max_examples=60, deadline=None)
@given(cases())
def test_places_are_a_partition_in_order(case):
    keys, count = case
    n = keys.shape[1]
    stay, go, into = match_tokens(keys, count)
    assert (stay.shape[1], go.shape[1], into.shape[1]) == (n - count, count, count)
    assert torch.equal(torch.cat([stay, go], dim=1).sort(dim=1).values, torch.arange(n).expand(len(keys), n))
    assert torch.equal(stay, stay.sort(dim=1).values)
    assert (go % 2 == 0).all()
    assert (stay.gather(1, into) % 2 == 1).all()  # none goes into one that may go itself


def test_of_equal_tokens_the_first_are_taken():
    stay, go, into = match_tokens(torch.ones(2, 8, 3), 3)
    assert stay.tolist() == [[1, 3, 5, 6, 7]] * 2
    assert go.tolist() == [[0, 2, 4]] * 2
    assert into.tolist() == [[0, 0, 0]] * 2


def test_low_precision_and_zero_keys():
    keys = torch.zeros(1, 4, 3, dtype=torch.bfloat16)
    keys[0, 2:] = 1
    assert [places.tolist() for places in match_tokens(keys, 1)] == [[[0, 1, 3]], [[2]], [[2]]]

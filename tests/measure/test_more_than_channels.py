"""The benchmark of more choices than channels: what it holds to be right is the rule in float64."""

import pytest
import torch

from tests.support.scripts import ROOT, load_script
from vlprune.selection import greedy_map_features, use_fused


@pytest.fixture
def script(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")  # where its neighbours lie
    return load_script("benchmarks/more_than_channels.py")


def test_its_choices_are_the_rules_and_go_on_by_the_diagonal(script):
    for kind in script.KINDS:
        x = script.make_features(kind, 40, 8, "cpu")
        assert x.shape == (1, 40, 8)
        assert x.dtype == torch.bfloat16
        r = 0.3 + 0.7 * torch.rand(1, 40, generator=torch.Generator().manual_seed(1))
        order, unspent = script.choose_in_float64(x, r, 16)
        assert unspent == 8
        with use_fused(False):
            assert order.tolist() == greedy_map_features(x, r, 16)[0].tolist()
        rest = [j for j in range(40) if j not in set(order[:8].tolist())]
        by_diagonal = sorted(rest, key=lambda j: (-r[0, j].item(), j))
        assert order[8:].tolist() == by_diagonal[:8]

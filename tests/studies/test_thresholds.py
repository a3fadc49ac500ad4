"""Counts at thresholds, against the same by loops."""

import pytest
import torch

from vlprune.studies.thresholds import TAUS, ThresholdCounts


def test_counts_are_those_of_loops():
    torch.manual_seed(0)
    images = [torch.randn(12, 3) + 1.0 for _ in range(2)]
    counts = ThresholdCounts()
    for tokens in images:
        counts.add(tokens, (3, 4))
    found = counts.shares()
    for tau in TAUS:
        redundant = connected = edges = 0
        for tokens in images:
            unit = tokens.double() / tokens.double().norm(dim=1, keepdim=True)
            for a in range(12):
                beside = [b for b in range(12) if b != a and max(abs(a // 4 - b // 4), abs(a % 4 - b % 4)) == 1]
                redundant += sum(float(unit[a] @ unit[b]) for b in beside) / len(beside) >= tau
                met = sum(float(unit[a] @ unit[b]) >= tau for b in range(12) if b % 2 != a % 2)
                connected, edges = connected + (met > 0), edges + met
        wanted = {"redundant": redundant / 24, "with_an_edge": connected / 24, "edges": edges / 24}
        assert found[str(tau)] == pytest.approx(wanted)

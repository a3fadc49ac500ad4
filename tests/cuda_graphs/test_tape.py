"""The tape forgets what Python knew, and remembers memory."""

import pytest
import torch

from tests.support.tape import capture_on_tape


def test_it_replays_on_the_same_memory():
    held, total, factor = torch.ones(3), torch.zeros(3), 2

    def function():
        total[1:].add_(held[1:] * factor)
        return total.sum()

    replay = capture_on_tape(function)
    total.zero_()
    held.fill_(5)
    factor = 100
    assert replay() == 20
    assert replay() == 40
    assert total.tolist() == [0, 20, 20]


def test_it_refuses_to_read_a_value():
    held = torch.ones(3)
    with pytest.raises(RuntimeError, match="not permitted"):
        capture_on_tape(lambda: held * held.sum().item())

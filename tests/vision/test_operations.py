"""The formula of a tower's operations against torch's counter."""

import re

import pytest
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from tests.vision.conftest import pixels
from vlprune.vision import CheaperTower
from vlprune.vision.operations import tower_operations


@pytest.mark.parametrize("merge", [0.0, 0.25, 0.5])
def test_operations_are_what_torch_counts(model, tower, merge, device):
    counter = FlopCounterMode(display=False)
    with CheaperTower(model, merge=merge), sdpa_kernel(SDPBackend.MATH), counter:  # the others are not counted on a CPU
        tower(pixels(1).to(device))
    counts = {name: sum(by_kind.values()) for name, by_kind in counter.get_flop_counts().items()}
    in_layers = sum(count for name, count in counts.items() if re.fullmatch(r".*\.encoder\.layers?\.\d+", name))
    assert in_layers == 2 * tower_operations(tower, merge)

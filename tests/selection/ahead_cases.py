"""Parts of the greedy's kernel by themselves: the tokens ahead, and numbers in halves. Run by `test_fused.py`."""

import math

import pytest
import torch

pytest.importorskip("triton")

import triton
import triton.language as tl

from vlprune.selection.fused.ahead import halves, look_ahead

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@triton.jit
def _look_ahead(scores, numbers, lists, ahead, values, N: tl.constexpr, Q: tl.constexpr):
    tokens, place = 2 * tl.arange(0, N), tl.arange(0, Q)
    rest, own, j = tl.load(numbers), tl.load(numbers + 1), tl.load(numbers + 2).to(tl.int32)
    found, v2, outside = look_ahead(tl.load(scores + tl.arange(0, N)), tokens, rest, j, own, lists, Q)
    tl.store(ahead + place, found)
    tl.store(values + place, v2)
    tl.store(numbers + 3, outside)


@pytest.mark.parametrize("levels", [1, 3, 50, 10_000])
@pytest.mark.parametrize("there", [1, 9, 16, 64])
@pytest.mark.parametrize("rest", [-math.inf, 0.25, 2.0])
def test_the_tokens_ahead_are_the_best(levels, there, rest):
    """Of 64 scores, some of which are nobody's, with ties or without; `rest` may be above any of them."""
    g = torch.Generator().manual_seed(levels + there)
    scores = torch.full((64,), -math.inf)
    at = torch.randperm(64, generator=g)[:there]
    scores[at] = torch.randint(levels, (there,), generator=g) / levels - 0.25
    j = int(scores.argmax())
    numbers = torch.tensor([rest, scores[j], 2 * j, 0.0], device=DEVICE)
    lists, ahead = (torch.full((16,), 7, dtype=dtype, device=DEVICE) for dtype in (torch.int64, torch.int32))
    values = torch.zeros(16, device=DEVICE)
    _look_ahead[(1,)](scores.to(DEVICE), numbers, lists, ahead, values, N=64, Q=16)
    found = [token // 2 for token in ahead.tolist() if token >= 0]
    assert found[0] == j
    assert len(set(found)) == len(found)
    assert values.tolist() == [*scores[found].tolist(), *[-math.inf] * (16 - len(found))]
    others = [value for token, value in enumerate(scores.tolist()) if token not in found]
    assert numbers[3].item() == max([rest, *others])
    assert all(scores[token] > numbers[3] for token in found[1:])
    could = scores[(torch.arange(64) != j) & (scores > rest)]
    if len(could) == len(could.unique()):  # of equals all come or none
        assert len(found) - 1 >= min(len(could), 7)


@triton.jit
def _halves(value, high, low, N: tl.constexpr):
    i = tl.arange(0, N)
    first, second = halves(tl.load(value + i))
    tl.store(high + i, first)
    tl.store(low + i, second)


def test_halves_keep_22_bits():
    value = torch.cat([torch.randn(1022, generator=torch.Generator().manual_seed(0)), torch.tensor([0.0, 1e9])])
    high, low = torch.zeros(2, 1024, dtype=torch.float16, device=DEVICE)
    _halves[(1,)](value.to(DEVICE), high, low, N=1024)
    both = high.double().cpu() + low.double().cpu() / 2048
    wanted = value.double().clamp(max=60000.0)
    assert ((both - wanted).abs() <= 2.0**-22 * wanted.abs().clamp(min=2.0**-10)).all()

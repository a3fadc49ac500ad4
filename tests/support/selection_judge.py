"""Redundancy and the greedy judged by float64: random features, and whether each score and each choice is right."""

import torch

from vlprune.selection.numerics import TIE

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
ROUNDING = TIE
"""How far float32 may be off, in a cosine or in v² on a scale where 1 is large: ties within it go either way."""


def image(seed, B, n, d, dtype=torch.float32):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(B, n, d, generator=g) + 0.5 * torch.randn(B, 1, d, generator=g)
    return x.to(DEVICE, dtype), torch.randn(B, 5, d, generator=g).to(DEVICE, dtype)


def exact_cosines(x):
    unit = torch.nn.functional.normalize(x.double(), dim=-1)
    return unit @ unit.mT


def assert_redundancy(scores, x, *, tau=0.3, gamma=5.0, graph="bipartite"):
    """Each score is that of the exact cosines; edges on the threshold, to within rounding, may count or not."""
    n = x.shape[1]
    side = torch.arange(n, device=DEVICE) % 2
    if graph == "random":
        side[torch.randperm(n, generator=torch.Generator().manual_seed(0)).to(DEVICE)] = (
            torch.arange(n, device=DEVICE) >= n - n // 2
        ).long()
    meet = side[:, None] != side if graph != "full" else ~torch.eye(n, dtype=torch.bool, device=DEVICE)
    for got, y in zip(scores, x):
        cosine = torch.where(meet, exact_cosines(y), 0.0)
        edge = meet & (cosine >= tau - TIE + ROUNDING)
        open_ones = (meet & ((cosine - (tau - TIE)).abs() < ROUNDING)).sum(1)
        degree, total, every = edge.sum(1), (cosine * edge).sum(1), cosine.sum(1) / meet.sum(1).clamp(min=1)
        fits = torch.zeros(n, dtype=torch.bool, device=DEVICE)
        for more in range(int(open_ones.max()) + 1):
            d = degree + more
            dense = d * torch.exp(gamma * ((total + more * (tau - TIE)) / d.clamp(min=1) - tau))
            want = torch.where(d > 0, dense, every)
            fits |= (more <= open_ones) & ((got - want).abs() <= 2e-6 + 1e-5 * want.abs())
        assert fits.all(), (~fits).nonzero()[:5]


def assert_greedy(order, kernel, candidates=None, eps=1e-6, gains=None):
    """Every choice is the rule's, judged by exact v² after the choices before it: to within rounding of each border.

    `gains` (B, k), if given, are these v², and 0 where it is spent, or where the order is −1: none was chosen there.
    """
    (B, k), (n, L) = order.shape, (kernel.shape[1], kernel.double())
    stopped = order < 0
    assert all(len(set(row)) == k for row in order.where(~stopped, -1 - torch.arange(k, device=DEVICE)).tolist())
    assert gains is None or not gains[stopped].any()
    image, index = torch.arange(B, device=DEVICE), torch.arange(n, device=DEVICE)
    v2 = L.diagonal(dim1=1, dim2=2).clone()
    if candidates is not None:
        v2 = torch.full_like(v2, -torch.inf).scatter(1, candidates, v2.gather(1, candidates))
    spare, scale, u = v2.clone(), v2.amax(1, keepdim=True), L.new_zeros(B, k, n)
    slack, floor = ROUNDING * scale, (TIE + 8 * eps) * scale
    good = []
    for t, j in enumerate(order.clamp(min=0).T):
        best = v2.amax(1, keepdim=True)
        right = []
        for value in (v2, spare):  # the choice reaches the border, and no token before it clearly does
            least = value.amax(1, keepdim=True) - TIE * scale
            earlier = (index < j[:, None]) & (value >= least + slack)
            right.append((value[image, j][:, None] >= least - slack) & ~earlier.any(1, keepdim=True))
        good.append((right[0] & (best > floor - slack)) | (right[1] & (best < floor + slack)) | stopped[:, t, None])
        if gains is not None:
            added, spent = gains[:, t, None].double(), gains[:, t, None] == 0
            value = torch.where(spent, best < floor + slack, (added - v2[image, j][:, None]).abs() <= slack)
            good.append(value | stopped[:, t, None])
        row = L[image, j] - torch.einsum("bt,btn->bn", u[image, :t, j], u[:, :t])
        e = row / torch.sqrt(v2[image, j][:, None].clamp(min=0) + eps * scale)
        u[:, t] = torch.where(best > floor, e, 0.0)
        v2 = v2 - u[:, t] ** 2
        v2[image, j] = spare[image, j] = -torch.inf
    good = torch.cat(good, 1)
    assert good.all(), (~good).nonzero()[:5]

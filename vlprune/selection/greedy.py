"""The loop of the greedy, twice: for an accelerator, without waiting for it, and for a CPU, in numpy.

A step is a dozen operations on n numbers. On a GPU they are queued without ever reading a value back. On a CPU torch
spends more time on calling them than on computing, so there the loop runs in numpy, one image after the other, and
rows of the kernel are computed several at a time. Both follow the same rules, and the tests check that they choose the
same tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from .numerics import TIE, first_best

BLOCK = 32  #: rows that the CPU computes at a time: a product of 32 is about as fast as four of one

Row = Callable[[int, np.ndarray], np.ndarray]
"""From a token of one image, and v² (n,) of all its tokens, to the token's row (n,) of the kernel."""


@dataclass(frozen=True)
class MatrixKernel:
    """A kernel given as a matrix (B, n, n)."""

    matrix: Tensor

    @property
    def diagonal(self) -> Tensor:
        return self.matrix.diagonal(dim1=1, dim2=2)

    def rows(self, j: Tensor) -> Tensor:
        """The rows (B, 1, n) of tokens `j` (B,), numbered through the whole batch."""
        return self.matrix.reshape(-1, self.matrix.shape[2]).index_select(0, j)[:, None]

    def on_host(self, image: int) -> Row:
        """The function that looks up a row of one image's matrix."""
        matrix = self.matrix[image].numpy()
        return lambda j, v2: matrix[j]


@dataclass(frozen=True)
class VectorKernel:
    """A kernel given by unit vectors (B, n, d) and weights (B, n), whose rows are computed when they are needed."""

    unit: Tensor
    weight: Tensor
    diagonal: Tensor

    def rows(self, j: Tensor) -> Tensor:
        """The rows (B, 1, n) of tokens `j` (B,), numbered through the whole batch."""
        flat, weights = self.unit.reshape(-1, self.unit.shape[2]), self.weight.reshape(-1)
        cosine = torch.bmm(flat.index_select(0, j)[:, None], self.unit.mT)
        return cosine.mul_(self.weight[:, None]).mul_(weights.index_select(0, j)[:, None, None])

    def on_host(self, image: int) -> Row:
        """The function that computes a row, along with those of the tokens with the largest v²: likely the next."""
        unit, vectors, weight = self.unit[image], self.unit[image].numpy(), self.weight[image].numpy()
        made: dict[int, np.ndarray] = {}

        def row(j: int, v2: np.ndarray) -> np.ndarray:
            if j not in made:
                likely = v2.argpartition(-BLOCK)[-BLOCK:] if len(v2) > BLOCK else v2.argsort()
                tokens = [j, *(i for i in likely.tolist() if i != j and i not in made)]
                rows = (torch.from_numpy(vectors[tokens]) @ unit.mT).numpy()
                rows *= weight
                rows *= weight[tokens, None]
                made.update(zip(tokens, rows))
            return made.pop(j)

        return row


def greedy(
    kernel: MatrixKernel | VectorKernel,
    k: int,
    eps: float,
    candidates: Tensor | None = None,
    survivors: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Choose k tokens (B, k), each time the one with the largest v², and say in `gains` (B, k) what that v² was.

    Candidates (B, c), ascending, come first. Once v² is spent, tokens follow by the diagonal; their gains are 0.
    With `survivors` (B, m), an image's choices end with one more for each of its first m that is no survivor: k has to
    be min(2m, n), and behind the last choice the order is −1 and the gains are 0.
    """
    run = greedy_on_host if kernel.diagonal.device.type == "cpu" else greedy_on_device
    return run(kernel, k, eps, candidates, survivors)


def greedy_on_device(
    kernel: MatrixKernel | VectorKernel,
    k: int,
    eps: float,
    candidates: Tensor | None,
    survivors: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`greedy` without waiting for the device: branches depend on shapes alone. v² of a chosen token is −inf.

    So it goes on to rank k, and what it chose too much is taken back.
    """
    diagonal = kernel.diagonal
    B, n = diagonal.shape
    c = 0 if candidates is None else candidates.shape[1]
    state = torch.stack([diagonal, diagonal])
    v2, spare = state  # spare: by what the tokens that are not chosen yet follow when v² is spent
    u = torch.empty(k, B, n, dtype=torch.float32, device=diagonal.device)
    flat_state, flat_v2, flat_u = state.view(2, -1), v2.view(-1), u.view(k, -1)
    start = torch.arange(B, device=diagonal.device) * n  # one index into all images is cheaper than a gather
    scale = torch.zeros(B, 1, dtype=torch.float32, device=diagonal.device)
    outside = torch.ones(B, n, dtype=torch.bool, device=diagonal.device)
    if candidates is not None:
        outside.scatter_(1, candidates, False)
    chosen, gains = [], []
    for t in range(k):
        value, fallback = state.masked_fill(outside, -torch.inf) if t < c else (v2, spare)
        best = value.amax(1, keepdim=True)
        if t == 0 or t == c:  # v² only falls, so the first choice (of a phase) has the largest
            scale = torch.maximum(scale, best)
            tie, floor, ridge = TIE * scale, (TIE + 8 * eps) * scale, eps * scale
        spent = best <= floor
        j = first_best(torch.where(spent, fallback, value), tie) + start
        own = flat_v2.index_select(0, j)
        chosen.append(j)
        gains.append(own.masked_fill(spent[:, 0], 0.0))
        if t + 1 == k:
            break
        residual = kernel.rows(j)
        if t:
            u_j = flat_u[:t].index_select(1, j)
            residual = torch.baddbmm(residual, u_j.T[:, None], u[:t].transpose(0, 1), alpha=-1)
        # a spent token adds no direction; dividing by its v² would only magnify noise
        inverse = (own[:, None] + ridge).rsqrt_().masked_fill_(spent, 0.0)
        e = torch.mul(residual[:, 0], inverse, out=u[t])
        v2.addcmul_(e, e, value=-1)
        flat_state.index_fill_(1, j, -torch.inf)
    order, added = torch.stack(chosen, 1) - start[:, None], torch.stack(gains, 1)
    if survivors is not None:
        m = survivors.shape[1]
        marked = torch.zeros_like(outside).scatter_(1, survivors, True)
        ranks = 2 * m - marked.gather(1, order[:, :m]).sum(1, keepdim=True)
        behind = torch.arange(k, device=diagonal.device) >= ranks
        order, added = order.masked_fill(behind, -1), added.masked_fill(behind, 0.0)
    return order, added


def greedy_on_host(
    kernel: MatrixKernel | VectorKernel,
    k: int,
    eps: float,
    candidates: Tensor | None,
    survivors: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`greedy` in numpy."""
    diagonal = kernel.diagonal.numpy()
    B, n = diagonal.shape
    order, gains = np.full((B, k), -1, dtype=np.int64), np.zeros((B, k), dtype=np.float32)
    u, spread = np.empty((k, n), dtype=np.float32), np.empty(n, dtype=np.float32)
    near = np.empty(n, dtype=bool)
    c = 0 if candidates is None else candidates.shape[1]
    for image in range(B):
        row = kernel.on_host(image)
        v2, spare = diagonal[image].copy(), diagonal[image].copy()
        pool = None if candidates is None else candidates[image].numpy()
        scale = np.float32(0)
        ranks, surviving = k, set()
        if survivors is not None:  # one rank less than 2m for each of the first m choices that survives
            ranks, surviving = 2 * survivors.shape[1], set(survivors[image].tolist())
        for t in range(k):
            among = pool if t < c else None
            value = v2 if among is None else v2[among]
            best = value[value.argmax()]
            if t in (0, c):
                scale = max(scale, best)
                tie, floor, ridge = TIE * scale, (TIE + 8 * eps) * scale, eps * scale
            spent = best <= floor
            if spent:
                value = spare if among is None else spare[among]
                best = value[value.argmax()]
            at = np.greater_equal(value, best - tie, out=near[: len(value)]).argmax()
            j = int(at if among is None else among[at])
            order[image, t], gains[image, t] = j, 0.0 if spent else v2[j]
            if j in surviving and t < len(surviving):
                ranks -= 1
            if t + 1 == ranks:
                break
            e = u[t]
            if spent:
                e.fill(0.0)
            else:
                np.dot(u[:t, j], u[:t], out=spread)
                np.subtract(row(j, v2), spread, out=e)
                np.divide(e, np.sqrt(v2[j] + ridge), out=e)
                np.subtract(v2, np.multiply(e, e, out=spread), out=v2)
            v2[j] = spare[j] = -np.inf
    return torch.from_numpy(order), torch.from_numpy(gains)

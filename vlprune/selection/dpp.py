"""QCSP: the query-conditioned kernel, and fast greedy MAP inference on it."""

from collections.abc import Callable

import torch
from torch import Tensor

from .checks import (
    Condition,
    check_choice,
    check_count,
    check_indices,
    check_real,
    check_tensor,
    finite,
    require,
)
from .numerics import TIE, exact_float32, first_best, take, unit_vectors

KERNELS = ("s_prime", "s")

Row = Callable[[Tensor], Tensor]
"""From the chosen tokens (B,), counted through the whole batch, to their rows of the kernel (B, 1, n)."""


def query_kernel(features: Tensor, relevance: Tensor, *, kind: str = "s_prime") -> Tensor:
    """The kernel of the DPP: cosine similarity, weighted by relevance r.

    - "s_prime": diag(r) · cos · diag(r), the paper's default.
    - "s": diag(r)^½ · cos · diag(r)^½, in which relevance weighs less.

    The cosine of a token with itself is exactly 1, or 0 for a zero vector.

    Args:
        features: (B, n, d), any floating dtype. B may be 0.
        relevance: (B, n), finite and not negative.

    Returns:
        (B, n, n) float32, symmetric and positive semi-definite.

    >>> tokens = torch.tensor([[[1.0, 0.0], [0.6, 0.8]]])
    >>> query_kernel(tokens, torch.tensor([[1.0, 0.5]]))
    tensor([[[1.0000, 0.3000],
             [0.3000, 0.2500]]])
    """
    _check_pair(features, relevance, kind)
    with exact_float32(features.device):
        unit, length, r = _checked(features, relevance)
        weight, diagonal = weigh(length, r, kind)
        return _gram(unit, weight, diagonal)


def greedy_map(kernel: Tensor, k: int, *, eps: float = 1e-6, candidates: Tensor | None = None) -> Tensor:
    """Choose k tokens one by one, each time the one that raises the determinant of the chosen block most.

    A prefix of the answer is the answer for a smaller k. Chen et al. (2018): O(n·k²) time, O(n·k) memory.

    Values of v² closer than 2e-6 of the first choice's are tied and the lower index wins. When no token has
    more than (2e-6 + 8·eps) of the first choice's, what is left is rounding and what `eps` leaves behind: the
    rest follows by the kernel's diagonal.

    Args:
        kernel: (B, n, n), symmetric positive semi-definite, any floating dtype. B may be 0.
        k: from 1 to n.
        eps: added to v² under the square root, relative to the first choice's v² (which is 1 in Script, so
            this is the paper's ε); in [0, 1e-3].
        candidates: (B, c) int64, distinct: tokens to be chosen before any other.

    Returns:
        (B, k) int64, in order of choice.

    >>> kernel = torch.tensor([[[1.0, 0.9, 0.0], [0.9, 0.9, 0.0], [0.0, 0.0, 0.5]]])
    >>> greedy_map(kernel, 3).tolist()
    [[0, 2, 1]]
    """
    check_tensor("kernel", kernel, "B n n")
    B, n, _ = kernel.shape
    k = check_count("k", k, 1, n, "the number of tokens")
    check_real("eps", eps, 0.0, 1e-3)
    conditions = _check_candidates(candidates, kernel, B, n)
    with exact_float32(kernel.device):
        matrix = kernel.to(torch.float32)

        def words() -> str:
            b, i, j = (~matrix.isfinite()).nonzero()[0].tolist()
            value = matrix[b, i, j].item()
            return f"kernel must be finite in float32, got {value} at batch {b}, row {i}, column {j}."

        require((matrix.isfinite().all(), words), *conditions)
        diagonal = matrix.diagonal(dim1=1, dim2=2)
        return greedy(diagonal, _matrix_rows(matrix), k, eps, _sorted(candidates))[0]


def greedy_map_features(
    features: Tensor,
    relevance: Tensor,
    k: int,
    *,
    kind: str = "s_prime",
    eps: float = 1e-6,
    candidates: Tensor | None = None,
) -> Tensor:
    """`greedy_map(query_kernel(features, relevance, kind=kind), k)` without the whole kernel.

    Each step needs one row of the kernel, one product of (n, d) with a vector: O(k·n·(d + k)) time and
    O(n·(d + k)) memory. With c ≥ k candidates the work is done on them alone, so n becomes c. Up to 4,096
    tokens of which k are at least an eighth, one (n, n) product is cheaper than k thin ones and made instead.

    Args:
        features: (B, n, d), any floating dtype. B may be 0.
        relevance: (B, n), finite and not negative.
        k, eps, candidates: as in `greedy_map`.

    Returns:
        (B, k) int64, in order of choice.

    >>> tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]])
    >>> relevance = torch.tensor([[1.0, 0.9, 0.5]])
    >>> greedy_map_features(tokens, relevance, 2).tolist()
    [[0, 2]]
    >>> greedy_map_features(tokens, relevance, 2, candidates=torch.tensor([[1]])).tolist()
    [[1, 2]]
    """
    _check_pair(features, relevance, kind)
    B, n, _ = features.shape
    k = check_count("k", k, 1, n, "the number of tokens")
    check_real("eps", eps, 0.0, 1e-3)
    conditions = _check_candidates(candidates, features, B, n)
    with exact_float32(features.device):
        unit, length, r = _checked(features, relevance, conditions)
        weight, diagonal = weigh(length, r, kind)
        return greedy_units(unit, weight, diagonal, k, eps, _sorted(candidates))


def weigh(length: Tensor, relevance: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Each token's weight in the kernel (B, n), and the kernel's exact diagonal (B, n)."""
    real = length[:, :, 0] > 0
    if kind == "s":
        return relevance.sqrt(), relevance * real
    return relevance, relevance * relevance * real


def greedy_units(
    unit: Tensor, weight: Tensor, diagonal: Tensor, k: int, eps: float, candidates: Tensor | None
) -> Tensor:
    """`greedy_map_features` on unit vectors and what `weigh` made; candidates ascending."""
    at = None
    if candidates is not None and candidates.shape[1] >= k:
        at, candidates = candidates, None
        unit, weight, diagonal = take(unit, at), weight.gather(1, at), diagonal.gather(1, at)
    one_product = unit.shape[1] <= min(8 * k, 4096)
    rows = _matrix_rows(_gram(unit, weight, diagonal)) if one_product else _vector_rows(unit, weight)
    order, _ = greedy(diagonal, rows, k, eps, candidates)
    return order if at is None else at.gather(1, order)


def _gram(unit: Tensor, weight: Tensor, diagonal: Tensor) -> Tensor:
    kernel = (unit @ unit.mT).mul_(weight[:, :, None] * weight[:, None])
    kernel.diagonal(dim1=1, dim2=2).copy_(diagonal)
    return kernel


def greedy(diagonal: Tensor, row: Row, k: int, eps: float, candidates: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The loop: k choices (B, k) and the v² each had when it was chosen (B, k). Candidates ascending.

    Nothing here waits for the device: branches depend on shapes alone. v² of a chosen token is −inf.
    """
    B, n = diagonal.shape
    c = 0 if candidates is None else candidates.shape[1]
    state = diagonal.repeat(2, 1, 1)
    v2, spare = state  # spare: the diagonal of what is not chosen yet
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
        gains.append(own)
        if t + 1 == k:
            break
        residual = row(j)
        if t:
            u_j = flat_u[:t].index_select(1, j)
            residual = torch.baddbmm(residual, u_j.T[:, None], u[:t].transpose(0, 1), alpha=-1)
        # a spent token adds no direction; dividing by its v² would only magnify noise
        inverse = (own[:, None] + ridge).rsqrt_().masked_fill_(spent, 0.0)
        e = torch.mul(residual[:, 0], inverse, out=u[t])
        v2.addcmul_(e, e, value=-1)
        flat_state.index_fill_(1, j, -torch.inf)
    return torch.stack(chosen, 1) - start[:, None], torch.stack(gains, 1).clamp(min=0.0)


def _matrix_rows(matrix: Tensor) -> Row:
    flat = matrix.reshape(-1, matrix.shape[2])
    return lambda j: flat.index_select(0, j)[:, None]


def _vector_rows(unit: Tensor, weight: Tensor) -> Row:
    flat, weights = unit.view(-1, unit.shape[2]), weight.view(-1)

    def row(j: Tensor) -> Tensor:
        cosine = torch.bmm(flat.index_select(0, j)[:, None], unit.mT)
        return cosine.mul_(weight[:, None]).mul_(weights.index_select(0, j)[:, None, None])

    return row


def _sorted(candidates: Tensor | None) -> Tensor | None:
    return None if candidates is None else candidates.sort(dim=1).values


def _check_pair(features: Tensor, relevance: Tensor, kind: str) -> None:
    check_tensor("features", features, "B n d")
    check_relevance(features, relevance)
    check_choice("kind", kind, KERNELS)


def check_relevance(features: Tensor, relevance: Tensor) -> None:
    """Raise unless relevance is (B, n) for the features; its values are looked at in `allowed_relevance`."""
    B, n, _ = features.shape
    check_tensor("relevance", relevance, "B n", like=features, B=B, n=n)


def allowed_relevance(relevance: Tensor) -> list[Condition]:
    """The conditions that relevance (B, n) is finite and not negative."""

    def words() -> str:
        b, i = (relevance < 0).nonzero()[0].tolist()
        return f"relevance must not be negative, got {relevance[b, i].item()} at batch {b}, token {i}."

    return [finite("relevance", relevance, "B n"), ((relevance >= 0).all(), words)]


def _checked(
    features: Tensor, relevance: Tensor, conditions: list[Condition] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    x, r = features.to(torch.float32), relevance.to(torch.float32)
    unit, length = unit_vectors(x)
    require(finite("features", x, "B n d", length), *allowed_relevance(r), *(conditions or []))
    return unit, length, r


def _check_candidates(candidates: Tensor | None, like: Tensor, B: int, n: int) -> list[Condition]:
    if candidates is None:
        return []
    check_indices("candidates", candidates, "B c", like=like, B=B)
    ranked = candidates.sort(dim=1).values

    def words() -> str:
        wrong = (candidates < 0) | (candidates >= n)
        if bool(wrong.any()):
            b, i = wrong.nonzero()[0].tolist()
            return f"candidates must be from 0 to {n - 1}, got {candidates[b, i].item()} at batch {b}."
        b, i = (ranked[:, 1:] == ranked[:, :-1]).nonzero()[0].tolist()
        return f"candidates must be distinct, got {ranked[b, i].item()} twice at batch {b}."

    fine = (ranked[:, :1] >= 0).all() & (ranked[:, -1:] < n).all() & (ranked[:, 1:] > ranked[:, :-1]).all()
    return [(fine, words)]

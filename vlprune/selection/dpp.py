"""QCSP: the query-conditioned kernel, and fast greedy MAP inference on it."""

import torch
from torch import Tensor

from .checks import Condition, check_choice, check_count, check_indices, check_real, check_tensor, finite, require
from .dispatch import fused_for
from .greedy import MatrixKernel, VectorKernel, greedy
from .numerics import exact_float32, take, unit_vectors

KERNELS = ("s_prime", "s")


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
    if fast := fused_for(features):
        return fast.query_kernel(features, relevance, kind=kind)
    with exact_float32(features.device):
        unit, length, r = _checked(features, relevance)
        weight, diagonal = kernel_weights(length, r, kind)
        return _weighted(unit @ unit.mT, weight, diagonal)


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
    _check_candidates(candidates, kernel, B)
    if fast := fused_for(kernel):
        return fast.greedy_map(kernel, k, eps=eps, candidates=candidates)
    conditions = _allowed_candidates(candidates, n)
    with exact_float32(kernel.device):
        matrix = kernel.detach().to(torch.float32)

        def words() -> str:
            b, i, j = (~matrix.isfinite()).nonzero()[0].tolist()
            value = matrix[b, i, j].item()
            return f"kernel={value} at batch {b}, row {i}, column {j}: must be finite in float32."

        require((matrix.isfinite().all(), words), *conditions)
        return greedy(MatrixKernel(matrix), k, eps, _sorted(candidates))[0]


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
    tokens of which k are at least a sixteenth (a third on a CPU, which makes rows several at a time), one (n, n)
    product is cheaper and made instead.

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
    _check_candidates(candidates, features, B)
    if fast := fused_for(features):
        return fast.greedy_map_features(features, relevance, k, kind=kind, eps=eps, candidates=candidates)
    conditions = _allowed_candidates(candidates, n)
    with exact_float32(features.device):
        unit, length, r = _checked(features, relevance, conditions)
        weight, diagonal = kernel_weights(length, r, kind)
        return greedy_units(unit, weight, diagonal, k, eps, _sorted(candidates))[0]


def kernel_weights(length: Tensor, relevance: Tensor, kind: str) -> tuple[Tensor, Tensor]:
    """Each token's weight in the kernel (B, n), and the kernel's exact diagonal (B, n).

    `length` (B, n, 1) are the tokens' lengths: a zero vector has a zero on the diagonal.
    """
    real = length[:, :, 0] > 0
    if kind == "s":
        return relevance.sqrt(), relevance * real
    return relevance, relevance * relevance * real


def worth_a_matrix(n: int, k: int, share: int = 16) -> bool:
    """Whether all n × n cosines are cheaper to compute than k rows of them, as they are where k is 1/share of n.

    k thin products move n·d numbers each; one square product computes more, but at many times their speed.
    """
    return n <= min(share * k, 4096)


def matrix_for_greedy(n: int, k: int, device: torch.device) -> bool:
    """`worth_a_matrix` for the greedy, which on a CPU computes its rows in blocks that are nearly as fast."""
    return worth_a_matrix(n, k, 3 if device.type == "cpu" else 16)


def greedy_units(
    unit: Tensor,
    weight: Tensor,
    diagonal: Tensor,
    k: int,
    eps: float,
    candidates: Tensor | None,
    cosine: Tensor | None = None,
    survivors: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """`greedy_map_features` of unit vectors (B, n, d) and their `kernel_weights`, and the gains (B, k) of `greedy`.

    Candidates are ascending. `cosine` (B, n, n) are all their cosines, where they were computed; they are overwritten.
    `survivors`, not with candidates, are as in `greedy`.
    """
    at = None
    if candidates is not None and candidates.shape[1] >= k:
        at, candidates = candidates, None
        unit, weight, diagonal = take(unit, at), weight.gather(1, at), diagonal.gather(1, at)
    kernel: MatrixKernel | VectorKernel = VectorKernel(unit, weight, diagonal)
    if cosine is not None or matrix_for_greedy(unit.shape[1], k, unit.device):
        kernel = MatrixKernel(_weighted(unit @ unit.mT if cosine is None else cosine, weight, diagonal))
    order, gains = greedy(kernel, k, eps, candidates, survivors)
    return order if at is None else at.gather(1, order), gains


def _weighted(cosine: Tensor, weight: Tensor, diagonal: Tensor) -> Tensor:
    """The kernel, written over the cosines."""
    kernel = cosine.mul_(weight[:, :, None] * weight[:, None])
    kernel.diagonal(dim1=1, dim2=2).copy_(diagonal)
    return kernel


def _sorted(candidates: Tensor | None) -> Tensor | None:
    return None if candidates is None else candidates.sort(dim=1).values


def _check_pair(features: Tensor, relevance: Tensor, kind: str) -> None:
    check_tensor("features", features, "B n d")
    check_relevance(features, relevance)
    check_choice("kind", kind, KERNELS)


def check_relevance(features: Tensor, relevance: Tensor) -> None:
    """Raise unless relevance is (B, n) for the features; its values are checked by `allowed_relevance`."""
    B, n, _ = features.shape
    check_tensor("relevance", relevance, "B n", like=features, B=B, n=n)


def allowed_relevance(relevance: Tensor) -> list[Condition]:
    """The conditions that relevance (B, n) is finite and not negative."""

    def words() -> str:
        b, i = (relevance < 0).nonzero()[0].tolist()
        return f"relevance={relevance[b, i].item()} at batch {b}, token {i}: must not be negative."

    positive = (relevance >= 0).all() if relevance.device.type != "cpu" else not (relevance.numpy() < 0).any()
    return [finite("relevance", relevance, "B n"), (positive, words)]


def _checked(
    features: Tensor, relevance: Tensor, conditions: list[Condition] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Unit vectors, lengths and relevance in float32, after a check of their values and of `conditions`."""
    x, r = features.to(torch.float32), relevance.to(torch.float32)
    unit, length = unit_vectors(x)
    require(finite("features", x, "B n d", length), *allowed_relevance(r), *(conditions or []))
    return unit, length, r


def _check_candidates(candidates: Tensor | None, like: Tensor, B: int) -> None:
    if candidates is not None:
        check_indices("candidates", candidates, "B c", like=like, B=B)


def _allowed_candidates(candidates: Tensor | None, n: int) -> list[Condition]:
    """The condition that candidates are distinct tokens."""
    if candidates is None:
        return []
    ranked = candidates.sort(dim=1).values

    def words() -> str:
        wrong = (candidates < 0) | (candidates >= n)
        if bool(wrong.any()):
            b, i = wrong.nonzero()[0].tolist()
            return f"candidates={candidates[b, i].item()} at batch {b}: must be from 0 to {n - 1}."
        b, i = (ranked[:, 1:] == ranked[:, :-1]).nonzero()[0].tolist()
        return f"candidates={ranked[b, i].item()} twice at batch {b}: must be distinct."

    fine = (ranked[:, :1] >= 0).all() & (ranked[:, -1:] < n).all() & (ranked[:, 1:] > ranked[:, :-1]).all()
    return [(fine, words)]

"""Fusion: one set of m tokens from the graph's and the greedy's."""

import torch
from torch import Tensor

from .checks import check_choice, check_count, check_indices, require

RULES = ("released", "supplement", "filter")


def fuse(order: Tensor, graph_keep: Tensor, m: int, *, rule: str) -> Tensor:
    """Combine the greedy order with the tokens that the graph keeps into exactly m tokens.

    - "released": those of the order's first m that the graph keeps, topped up from the first m. That is
      always the first m themselves: the graph has no effect. The paper's released code computes this.
    - "supplement": those of the order's first m that the graph keeps, topped up with the ranks after m, in
      order. The graph must keep at least m tokens. The order needs 2m − i ranks, where i is the size of the
      smallest intersection in the batch; min(2m, n) ranks always suffice.
    - "filter": the first m of the order that the graph keeps; if they run short, the rest of the order. With
      an order made by `greedy_map(..., candidates=graph_keep)`, m ranks suffice.

    Args:
        order: (B, k) int64, distinct tokens in order of choice, k ≥ m. B may be 0. From a −1 on, as `select_script`
            sets it, a row holds no more tokens.
        graph_keep: (B, g) int64.
        m: at least 1.

    Returns:
        (B, m) int64, ascending.

    >>> order, graph_keep = torch.tensor([[5, 0, 3, 1]]), torch.tensor([[0, 1, 2]])
    >>> [fuse(order, graph_keep, 2, rule=rule).tolist() for rule in ("released", "supplement", "filter")]
    [[[0, 5]], [[0, 3]], [[0, 1]]]
    """
    check_indices("order", order, "B k")
    B, k = order.shape
    check_indices("graph_keep", graph_keep, "B g", like=order, B=B)
    m = check_count("m", m, 1, k, "the length of order")
    check_choice("rule", rule, RULES)
    if rule == "supplement" and graph_keep.shape[1] < m:
        shape = tuple(graph_keep.shape)
        raise ValueError(f"graph_keep of shape {shape}: must hold at least m={m} tokens to supplement.")
    both = found_in(graph_keep, order)
    ranks = m + (~both[:, :m]).sum(1) if rule == "supplement" else torch.full((B,), m, device=order.device)
    held = (order >= 0).cumprod(1).sum(1)

    def words() -> str:
        b = int((held < ranks).nonzero()[0])
        what = f" to supplement m={m}" if rule == "supplement" else ""
        shape = tuple(order.shape)
        return f"order of shape {shape}: must hold at least {ranks[b]} ranks{what}; batch {b} holds {held[b]}."

    require(((held >= ranks).all(), words))
    return combine(order, both, m, rule)


def found_in(graph_keep: Tensor, order: Tensor) -> Tensor:
    """(B, k) whether the graph keeps each token of the order; not of a −1."""
    marked = graph_keep.sort(dim=1).values
    at = torch.searchsorted(marked, order.contiguous()).clamp(max=marked.shape[1] - 1)
    return marked.gather(1, at) == order


def combine(order: Tensor, both: Tensor, m: int, rule: str) -> Tensor:
    """`fuse` of arguments that were checked; `both` (B, k) says which tokens of the order the graph keeps."""
    if rule == "released":
        return order[:, :m].sort(dim=1).values
    if rule == "filter":
        return order.gather(1, (~both).to(torch.uint8).argsort(dim=1, stable=True)[:, :m]).sort(dim=1).values
    missing = m - both[:, :m].sum(1, keepdim=True)
    rank = torch.arange(order.shape[1], device=order.device)
    kept = torch.where(rank < m, both, rank < m + missing)
    return order.masked_fill(~kept, torch.iinfo(torch.int64).max).sort(dim=1).values[:, :m]

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
        order: (B, k) int64, distinct tokens in order of choice, k ≥ m. B may be 0.
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
    return combine(order, graph_keep, m, rule)


def combine(order: Tensor, graph_keep: Tensor, m: int, rule: str) -> Tensor:
    """`fuse` of arguments that were checked, but for the length of the order where it is below 2m."""
    if rule == "released":
        return order[:, :m].sort(dim=1).values
    marked = graph_keep.sort(dim=1).values
    at = torch.searchsorted(marked, order.contiguous()).clamp(max=marked.shape[1] - 1)
    both = marked.gather(1, at) == order
    if rule == "filter":
        return order.gather(1, (~both).to(torch.uint8).argsort(dim=1, stable=True)[:, :m]).sort(dim=1).values
    missing = m - both[:, :m].sum(1, keepdim=True)
    k = order.shape[1]
    if k < 2 * m:

        def words() -> str:
            shape, ranks = tuple(order.shape), m + int(missing.max())
            return f"order of shape {shape}: must hold at least {ranks} ranks to supplement m={m}."

        require(((missing <= k - m).all(), words))
    rank = torch.arange(k, device=order.device)
    kept = torch.where(rank < m, both, rank < m + missing)
    return order.masked_fill(~kept, torch.iinfo(torch.int64).max).sort(dim=1).values[:, :m]

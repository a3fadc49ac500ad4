"""Script: graph and question together."""

import torch
from torch import Tensor

from vlprune.types import Selection

from .checks import check_choice, check_count, check_real, check_tensor, finite, require
from .dispatch import fused_for
from .dpp import (
    KERNELS,
    allowed_relevance,
    check_fill,
    check_relevance,
    greedy_map_features,
    greedy_units,
    matrix_for_greedy,
    weigh,
)
from .fusion import RULES, fuse
from .graph import check_graph, graph_keep, graph_scores, least, redundancy
from .numerics import exact_float32, ordered, unit_vectors
from .relevance import check_query, pool, relevance_scores
from .relevance import relevance as relevance_to


def select_script(
    features: Tensor,
    query: Tensor | None,
    m: int,
    *,
    tau: float | str = 0.3,
    gamma: float = 5.0,
    graph: str = "bipartite",
    kernel: str = "s_prime",
    fusion: str = "released",
    rho: float = 0.5,
    fill: float = 0.0,
    grid: tuple[int, int] | None = None,
    query_mask: Tensor | None = None,
    sign: int = 1,
    relevance: Tensor | None = None,
) -> Selection:
    """Keep the m tokens that are relevant to the question, differ from each other and are not redundant.

    `graph_scores`, `relevance_scores`, the greedy on `query_kernel`, then `fuse`; the features are read once.
    The graph keeps m tokens, or max(m, ρ·n) with fusion "filter", where the greedy then sees only those. The
    greedy runs for m ranks, or for min(2m, n), all that "supplement" can use. With the default, "released", the graph
    would have no say, and is not made.

    Args:
        features: (B, n, d), any floating dtype. B may be 0.
        query: (B, l, d), the question's tokens; None when `relevance` is given.
        m: tokens to keep, from 1 to n.
        tau, gamma, graph: as in `graph_scores`.
        kernel: "s_prime" or "s", as `kind` of `query_kernel`.
        fusion: "released", "supplement" or "filter", as `rule` of `fuse`.
        rho: the share of tokens that "filter" lets through, in (0, 1].
        fill, grid: as in `greedy_map_features`; "supplement" takes ranks for what they are, and fills nothing.
        query_mask, sign: as in `relevance_scores`.
        relevance: (B, n), finite and not negative, in place of the query (a dual encoder's, for instance).

    Returns:
        A `Selection` with kept (B, m), order (B, m or min(2m, n)), relevance (B, n) and, where there is a graph,
        redundancy (B, n).

    >>> tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.5, 0.5]]])
    >>> select_script(tokens, torch.tensor([[[1.0, 0.5]]]), 2).kept.tolist()
    [[0, 3]]
    """
    check_tensor("features", features, "B n d")
    n = features.shape[1]
    m = check_count("m", m, 1, n, "the number of tokens")
    check_graph(tau, gamma, graph)
    check_choice("kernel", kernel, KERNELS)
    check_choice("fusion", fusion, RULES)
    if not check_real("rho", rho, 0.0, 1.0) > 0.0:
        raise ValueError(f"rho must be above 0 and at most 1, got {rho!r}.")
    grid = check_fill(fill, grid, n)
    fill = 0.0 if fusion == "supplement" else float(fill)
    if (query is None) == (relevance is None):
        raise ValueError("Exactly one of query and relevance must be given.")
    if query is not None:
        check_query(features, query, query_mask, sign)
    elif relevance is not None:
        check_relevance(features, relevance)
    if isinstance(tau, str) and fusion != "released":  # each image's own threshold; the rest as below, one by one
        scores = graph_scores(features, tau=tau, gamma=gamma, graph=graph)
        if query is not None:
            relevance = relevance_scores(features, query, query_mask=query_mask, sign=sign)
        assert relevance is not None
        return select_scored(
            features, relevance, scores, m, kernel=kernel, fusion=fusion, rho=rho, fill=fill, grid=grid
        )
    if fast := fused_for(features):
        return fast.select_script(
            features,
            query,
            m,
            tau=tau,
            gamma=gamma,
            graph=graph,
            kernel=kernel,
            fusion=fusion,
            rho=rho,
            fill=fill,
            grid=grid,
            query_mask=query_mask,
            sign=sign,
            relevance=relevance,
        )
    with exact_float32(features.device):
        x = features.to(torch.float32)
        unit, length = unit_vectors(x)
        conditions = [finite("features", x, "B n d", length)]
        if query is not None:
            pooled, of_query = pool(query, query_mask)
            require(*conditions, *of_query)
            r = relevance_to(x, length, pooled, sign)
        elif relevance is not None:
            r = relevance.to(torch.float32)
            require(*conditions, *allowed_relevance(r))
        weight, diagonal = weigh(length, r, kernel)
        if fusion == "released":  # the graph has no say
            order = greedy_units(unit, weight, diagonal, m, 1e-6, None, None, fill, grid)
            return Selection(kept=ordered(order), order=order, relevance=r)
        assert not isinstance(tau, str)
        ranks = min(2 * m, n) if fusion == "supplement" else m
        # the greedy's cosines serve the graph too, unless the graph is there to spare the greedy most of them
        cosine = unit @ unit.mT if fusion != "filter" and matrix_for_greedy(n, ranks, unit.device) else None
        scores = redundancy(unit, tau, gamma, graph, cosine)
        survivors = least(scores, max(m, int(rho * n + 0.5)) if fusion == "filter" else m)
        candidates = survivors if fusion == "filter" else None
        order = greedy_units(unit, weight, diagonal, ranks, 1e-6, candidates, cosine, fill, grid)
        kept = fuse(order, survivors, m, rule=fusion)
    return Selection(kept=kept, order=order, redundancy=scores, relevance=r)


def select_scored(
    features: Tensor,
    relevance: Tensor,
    redundancy: Tensor,
    m: int,
    *,
    kernel: str = "s_prime",
    fusion: str = "released",
    rho: float = 0.5,
    fill: float = 0.0,
    grid: tuple[int, int] | None = None,
) -> Selection:
    """The second half of `select_script`, from relevance and redundancy (B, n) of any origin.

    >>> tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.5, 0.5]]])
    >>> select_scored(tokens, torch.ones(1, 4), graph_scores(tokens), 2).kept.tolist()
    [[0, 2]]
    """
    n = features.shape[1]
    filtering = fusion == "filter"
    survivors = graph_keep(redundancy, max(m, int(rho * n + 0.5)) if filtering else m)
    ranks = min(2 * m, n) if fusion == "supplement" else m
    candidates = survivors if filtering else None
    fill = 0.0 if fusion == "supplement" else fill
    order = greedy_map_features(features, relevance, ranks, kind=kernel, candidates=candidates, fill=fill, grid=grid)
    kept = fuse(order, survivors, m, rule=fusion)
    return Selection(kept=kept, order=order, redundancy=redundancy, relevance=relevance)

"""Script: what the graph and the question say, fused into one selection."""

from dataclasses import replace

import torch
from torch import Tensor

from vlprune.types import Selection

from . import torch_backend
from .backend import Backend
from .checks import check_choice, check_count, check_real, check_tensor
from .dispatch import fused_for
from .dpp import KERNELS, check_relevance
from .fusion import RULES
from .graph import check_graph, graph_scores
from .relevance import check_query


def select_script(
    features: Tensor,
    query: Tensor | None,
    m: int,
    *,
    tau: float | str = 0.3,
    gamma: float = 5.0,
    graph: str = "bipartite",
    kernel: str = "s_prime",
    fusion: str = "supplement",
    rho: float = 0.5,
    query_mask: Tensor | None = None,
    sign: int = 1,
    relevance: Tensor | None = None,
    redundancy: Tensor | None = None,
) -> Selection:
    """Keep the m tokens that are relevant to the question, differ from each other and are not redundant.

    `graph_scores`, `relevance_scores`, the greedy on `query_kernel`, then `fuse`; the features are read once.
    The graph keeps m tokens, or max(m, ρ·n) with fusion "filter", where the greedy then sees only those. The
    greedy runs for m ranks, and with the default, "supplement", for as many more as the graph does not keep of these.
    With "released" the graph would have no say, and is not made.

    Args:
        features: (B, n, d), any floating dtype. B may be 0.
        query: (B, l, d), the question's tokens; None when `relevance` is given.
        m: tokens to keep, from 1 to n.
        tau, gamma, graph: as in `graph_scores`.
        kernel: "s_prime" or "s", as `kind` of `query_kernel`.
        fusion: "released", "supplement" or "filter", as `rule` of `fuse`.
        rho: the share of tokens that "filter" lets through, in (0, 1].
        query_mask, sign: as in `relevance_scores`.
        relevance: (B, n), finite and not negative, in place of the query (a dual encoder's, for instance).
        redundancy: (B, n), finite, in place of the graph's (of a graph over a whole video, for instance).

    Returns:
        A `Selection` with kept (B, m), order and gains (B, m; with "supplement" min(2m, n), and −1 and 0 where an
        image's greedy had stopped), relevance (B, n) and, where there is a graph, redundancy (B, n).

    >>> tokens = torch.tensor([[[1.0, 0.0], [1.0, 0.1], [0.0, 1.0], [0.5, 0.5]]])
    >>> select_script(tokens, torch.tensor([[[1.0, 0.5]]]), 2).kept.tolist()
    [[1, 3]]
    """
    check_tensor("features", features, "B n d")
    B, n, _ = features.shape
    m = check_count("m", m, 1, n, "the number of tokens")
    check_graph(tau, gamma, graph)
    check_choice("kernel", kernel, KERNELS)
    check_choice("fusion", fusion, RULES)
    if not check_real("rho", rho, 0.0, 1.0, "a share of the tokens") > 0.0:
        raise ValueError(f"rho={rho!r}: a share of the tokens, above 0.")
    if (query is None) == (relevance is None):
        raise ValueError("query and relevance: exactly one of them must be given.")
    if query is not None:
        check_query(features, query, query_mask, sign)
    elif relevance is not None:
        check_relevance(features, relevance)
    if redundancy is not None:
        check_tensor("redundancy", redundancy, "B n", like=features, B=B, n=n)
    elif isinstance(tau, str) and fusion != "released":  # each image's own threshold
        redundancy = graph_scores(features, tau=tau, gamma=gamma, graph=graph)
    tensors = {
        "features": features,
        "query": query,
        "query_mask": query_mask,
        "relevance": relevance,
        "redundancy": None if fusion == "released" else redundancy,
    }
    settings = {
        "m": m,
        "tau": tau,
        "gamma": gamma,
        "graph": graph,
        "kernel": kernel,
        "fusion": fusion,
        "rho": rho,
        "sign": sign,
    }
    found = (fused_for(features) or torch_backend).run(_script, tensors, settings)
    given = {"relevance": relevance, "redundancy": redundancy}
    return replace(found, **{k: v.detach().to(torch.float32) for k, v in given.items() if v is not None})


def _script(
    backend_class: type[Backend],
    *,
    features: Tensor,
    query: Tensor | None,
    query_mask: Tensor | None,
    relevance: Tensor | None,
    redundancy: Tensor | None,
    m: int,
    tau: float,
    gamma: float,
    graph: str,
    kernel: str,
    fusion: str,
    rho: float,
    sign: int,
) -> Selection:
    """`select_script` of checked arguments by a backend's steps, without the scores that were given."""
    n = features.shape[1]
    tokens = backend_class(features, query=query, query_mask=query_mask, sign=sign, relevance=relevance, kernel=kernel)
    if fusion == "released":  # the graph has no say
        choices = tokens.greedy(m)
        return Selection(tokens.fuse(choices, m, None), choices.order, relevance=tokens.relevance, gains=choices.gains)
    scores, matrix = redundancy, None
    if scores is None:  # with "filter" the graph is there to spare the greedy most cosines: they share no matrix
        scores, matrix = tokens.redundancy(tau, gamma, graph, min(2 * m, n) if fusion == "supplement" else None)
    ranking = tokens.rank(scores, given=redundancy is not None)
    candidates = survivors = None
    if fusion == "filter":
        candidates = tokens.least_redundant(ranking, max(m, int(rho * n + 0.5)))
    else:
        survivors = tokens.survivors(ranking, m)
    choices = tokens.greedy(m, candidates=candidates, matrix=matrix, survivors=survivors)
    kept = tokens.fuse(choices, m, survivors)
    found = scores if redundancy is None else None
    return Selection(kept, choices.order, redundancy=found, relevance=tokens.relevance, gains=choices.gains)

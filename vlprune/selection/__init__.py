"""Which tokens to keep: pure tensor functions, batch first, float32 inside, deterministic.

>>> import torch
>>> select_script(torch.eye(4)[None], torch.tensor([[[1.0, 0.5, 0.0, 0.2]]]), 2).kept.tolist()
[[0, 1]]
"""

from .dispatch import use_fused
from .dpp import greedy_map, greedy_map_features, query_kernel
from .farthest_points import farthest_points
from .focus import relevance_focus
from .fusion import fuse
from .graph import graph_keep, graph_scores, graph_threshold
from .graph_weights import graph_weights
from .grid import grid_cells
from .merge import assign, group_means
from .relevance import dot_scores, relevance_scores
from .script import select_script
from .top_k import highest, remaining
from .trust import evidence_trust, relevance_evidence, trusted_relevance

__all__ = [
    "assign",
    "dot_scores",
    "evidence_trust",
    "farthest_points",
    "fuse",
    "graph_keep",
    "graph_scores",
    "graph_threshold",
    "graph_weights",
    "greedy_map",
    "greedy_map_features",
    "grid_cells",
    "group_means",
    "highest",
    "query_kernel",
    "relevance_evidence",
    "relevance_focus",
    "relevance_scores",
    "remaining",
    "select_script",
    "trusted_relevance",
    "use_fused",
]

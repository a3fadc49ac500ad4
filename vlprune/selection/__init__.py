"""Which tokens to keep: pure tensor functions, batch first, float32 inside, deterministic.

>>> import torch
>>> select_script(torch.eye(4)[None], torch.tensor([[[1.0, 0.5, 0.0, 0.2]]]), 2).kept.tolist()
[[0, 1]]
"""

from .cells import grid_cells
from .dispatch import use_fused
from .dot import dot_scores
from .dpp import greedy_map, greedy_map_features, query_kernel
from .fusion import fuse
from .graph import graph_keep, graph_scores
from .merge import assign, group_means
from .rank import highest, remaining
from .relevance import relevance_scores
from .script import select_script
from .spread import farthest_points
from .types import Selection

__all__ = [
    "Selection",
    "assign",
    "dot_scores",
    "farthest_points",
    "fuse",
    "graph_keep",
    "graph_scores",
    "greedy_map",
    "greedy_map_features",
    "grid_cells",
    "group_means",
    "highest",
    "query_kernel",
    "relevance_scores",
    "remaining",
    "select_script",
    "use_fused",
]

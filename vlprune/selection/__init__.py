"""Which tokens to keep: pure tensor functions, batch first, float32 inside, deterministic.

>>> import torch
>>> select_script(torch.eye(4)[None], torch.tensor([[[1.0, 0.5, 0.0, 0.2]]]), 2).kept.tolist()
[[0, 1]]
"""

from .dpp import greedy_map, greedy_map_features, query_kernel
from .fusion import fuse
from .graph import graph_keep, graph_scores
from .relevance import relevance_scores
from .script import select_script
from .types import Selection

__all__ = [
    "Selection",
    "fuse",
    "graph_keep",
    "graph_scores",
    "greedy_map",
    "greedy_map_features",
    "query_kernel",
    "relevance_scores",
    "select_script",
]

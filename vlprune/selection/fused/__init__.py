"""The functions of `vlprune.selection` as Triton kernels: few launches, no wait for the device, no n × n matrix twice.

`vlprune.selection` calls them for tensors on a CUDA device after it has checked shapes; nothing else should. What they
return is what the torch functions return, up to rounding; indices are the same but where rounding itself decides.

Values are checked on the device (finite, not negative, distinct), and nobody waits for the answer: a kernel that finds
a fault writes it to pinned host memory and goes on with 0 in its place, so that indices stay in range. The next call on
that device raises it as ValueError; `check` waits for the device and raises it at once.
"""

from .backend import run
from .device_errors import check
from .functions import (
    farthest_points,
    graph_keep,
    graph_scores,
    greedy_map,
    greedy_map_features,
    query_kernel,
    relevance_scores,
)
from .replay import replayed

__all__ = [
    "check",
    "farthest_points",
    "graph_keep",
    "graph_scores",
    "greedy_map",
    "greedy_map_features",
    "query_kernel",
    "relevance_scores",
    "replayed",
    "run",
]

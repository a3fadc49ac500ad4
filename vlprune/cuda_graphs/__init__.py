"""CUDA graphs of the LLM's prefill and decoding steps, for a model with or without pruning.

Below about a thousand tokens a prefill in plain transformers takes as long as the CPU needs to launch its kernels,
however many tokens were dropped. A graph is launched once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlprune.cuda_graphs.graphed_model import GraphedModel
    from vlprune.cuda_graphs.graphed_towers import GraphedTowers

__all__ = ["GraphedModel", "use_cuda_graphs"]


def use_cuda_graphs(model: Any, cuda_graphs: bool | str) -> GraphedModel | GraphedTowers | None:
    """Start what `attach(..., cuda_graphs=)` asks for: nothing (False), the towers alone, the LLM too (True), compiled.

    None where nothing is to run as graphs, or where towers cannot.

    >>> use_cuda_graphs(None, "fast")
    Traceback (most recent call last):
    ...
    ValueError: cuda_graphs='fast': choose from False, 'towers', True and 'compile'.
    """
    if cuda_graphs not in (False, "towers", True, "compile"):
        raise ValueError(f"cuda_graphs={cuda_graphs!r}: choose from False, 'towers', True and 'compile'.")
    if not cuda_graphs:
        return None
    if cuda_graphs == "towers":
        from vlprune.cuda_graphs.graphed_towers import graph_towers

        return graph_towers(model)
    from vlprune.cuda_graphs.graphed_model import GraphedModel

    return GraphedModel(model, compile=cuda_graphs == "compile")


def __getattr__(name: str) -> Any:
    if name == "GraphedModel":  # transformers' caches take seconds to load
        from vlprune.cuda_graphs.graphed_model import GraphedModel

        return GraphedModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

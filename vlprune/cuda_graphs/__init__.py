"""The LLM's prefill and decoding steps as CUDA graphs, for a model with or without pruning.

Below about a thousand tokens a prefill in plain transformers takes as long as the CPU needs to launch its kernels,
however many tokens were dropped. A graph is launched once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlprune.cuda_graphs.graphed import Graphed

__all__ = ["Graphed", "with_graphs"]


def with_graphs(model: Any, graphs: bool | str) -> Graphed | None:
    """What `attach(..., graphs=)` asks for: nothing, graphs (True), or graphs of compiled layers ("compile").

    >>> with_graphs(None, "fast")
    Traceback (most recent call last):
    ...
    ValueError: graphs='fast': choose from False, True and 'compile'.
    """
    if graphs not in (False, True, "compile"):
        raise ValueError(f"graphs={graphs!r}: choose from False, True and 'compile'.")
    if not graphs:
        return None
    from vlprune.cuda_graphs.graphed import Graphed

    return Graphed(model, compile=graphs == "compile")


def __getattr__(name: str) -> Any:
    if name == "Graphed":  # transformers' caches take seconds to load
        from vlprune.cuda_graphs.graphed import Graphed

        return Graphed
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

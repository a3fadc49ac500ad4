"""vlprune: drop the visual tokens a question does not need, before the LLM pays for them.

>>> import vlprune
>>> vlprune.__version__.count(".")
2
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from vlprune.version import __version__

if TYPE_CHECKING:  # names load on first use, so that `vlprune --help` does not wait for torch
    from vlprune import pocket as pocket
    from vlprune.budget import Budget as Budget
    from vlprune.errors import UnsupportedModel as UnsupportedModel
    from vlprune.methods import TRIM as TRIM
    from vlprune.methods import AttentionTopK as AttentionTopK
    from vlprune.methods import AveragePool as AveragePool
    from vlprune.methods import CDPruner as CDPruner
    from vlprune.methods import DivPrune as DivPrune
    from vlprune.methods import DppOnly as DppOnly
    from vlprune.methods import FastV as FastV
    from vlprune.methods import GraphOnly as GraphOnly
    from vlprune.methods import PyramidDrop as PyramidDrop
    from vlprune.methods import Random as Random
    from vlprune.methods import RelevanceTopK as RelevanceTopK
    from vlprune.methods import Script as Script
    from vlprune.methods import ScriptReleased as ScriptReleased
    from vlprune.methods import SparseVLM as SparseVLM
    from vlprune.methods import SparseVLMPlus as SparseVLMPlus
    from vlprune.methods import UniformGrid as UniformGrid
    from vlprune.methods import VisionZip as VisionZip
    from vlprune.methods import get_method as get_method
    from vlprune.methods import list_methods as list_methods
    from vlprune.pruner import Pruner as Pruner
    from vlprune.pruner import attach as attach
    from vlprune.record import Record as Record

_HOME = {
    "attach": "pruner",
    "Pruner": "pruner",
    "Budget": "budget",
    "Record": "record",
    "UnsupportedModel": "errors",
    "Script": "methods",
    "ScriptReleased": "methods",
    "CDPruner": "methods",
    "DivPrune": "methods",
    "TRIM": "methods",
    "VisionZip": "methods",
    "Random": "methods",
    "UniformGrid": "methods",
    "AveragePool": "methods",
    "AttentionTopK": "methods",
    "RelevanceTopK": "methods",
    "GraphOnly": "methods",
    "DppOnly": "methods",
    "FastV": "methods",
    "PyramidDrop": "methods",
    "SparseVLM": "methods",
    "SparseVLMPlus": "methods",
    "get_method": "methods",
    "list_methods": "methods",
}
__all__ = [*_HOME, "__version__", "pocket"]


def __getattr__(name: str) -> Any:
    if name == "pocket":
        return import_module("vlprune.pocket")
    if name in _HOME:
        value = getattr(import_module(f"vlprune.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'vlprune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)

"""One file per method, and a registry by name. A new method is one file, and one line here.

A package of your own adds its methods through the entry-point group `vlprune.methods`.
"""

from typing import TYPE_CHECKING

from vlprune.methods.attention_top_k import AttentionTopK as AttentionTopK
from vlprune.methods.average_pool import AveragePool as AveragePool
from vlprune.methods.base import Accounting as Accounting
from vlprune.methods.base import Method as Method
from vlprune.methods.base import QueryMethod as QueryMethod
from vlprune.methods.base import ScoreMethod as ScoreMethod
from vlprune.methods.cdpruner import CDPruner as CDPruner
from vlprune.methods.divprune import DivPrune as DivPrune
from vlprune.methods.dpp_only import DppOnly as DppOnly
from vlprune.methods.fastv import FastV as FastV
from vlprune.methods.graph_only import GraphOnly as GraphOnly
from vlprune.methods.in_llm import InLLMMethod as InLLMMethod
from vlprune.methods.pyramiddrop import PyramidDrop as PyramidDrop
from vlprune.methods.random import Random as Random
from vlprune.methods.registry import get_method as get_method
from vlprune.methods.registry import list_methods as list_methods
from vlprune.methods.registry import register_method as register_method
from vlprune.methods.relevance_top_k import RelevanceTopK as RelevanceTopK
from vlprune.methods.script import Script as Script
from vlprune.methods.script_plus import ScriptPlus as ScriptPlus
from vlprune.methods.script_released import ScriptReleased as ScriptReleased
from vlprune.methods.sparsevlm import SparseVLM as SparseVLM
from vlprune.methods.sparsevlm import SparseVLMPlus as SparseVLMPlus
from vlprune.methods.trim import TRIM as TRIM
from vlprune.methods.uniform_grid import UniformGrid as UniformGrid
from vlprune.methods.visionzip import VisionZip as VisionZip

if not TYPE_CHECKING:  # all that is imported above; type checkers see that from the imports themselves
    __all__ = [name for name, value in globals().items() if getattr(value, "__module__", "").startswith(__name__)]

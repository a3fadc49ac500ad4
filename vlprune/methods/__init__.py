"""One file per method, and a registry by name.

A package of your own adds its methods through the entry-point group `vlprune.methods`.
"""

from dataclasses import fields
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from vlprune.methods.attention_top_k import AttentionTopK
from vlprune.methods.average_pool import AveragePool
from vlprune.methods.base import Accounting, Method, QueryMethod
from vlprune.methods.cdpruner import CDPruner
from vlprune.methods.divprune import DivPrune
from vlprune.methods.dpp_only import DppOnly
from vlprune.methods.fastv import FastV
from vlprune.methods.graph_only import GraphOnly
from vlprune.methods.in_llm import InLLMMethod
from vlprune.methods.pyramiddrop import PyramidDrop
from vlprune.methods.random import Random
from vlprune.methods.relevance_top_k import RelevanceTopK
from vlprune.methods.script import Script
from vlprune.methods.script_released import ScriptReleased
from vlprune.methods.sparsevlm import SparseVLM, SparseVLMPlus
from vlprune.methods.trim import TRIM
from vlprune.methods.uniform_grid import UniformGrid
from vlprune.methods.visionzip import VisionZip

__all__ = [
    "TRIM",
    "Accounting",
    "AttentionTopK",
    "AveragePool",
    "CDPruner",
    "DivPrune",
    "DppOnly",
    "FastV",
    "GraphOnly",
    "InLLMMethod",
    "Method",
    "PyramidDrop",
    "QueryMethod",
    "Random",
    "RelevanceTopK",
    "Script",
    "ScriptReleased",
    "SparseVLM",
    "SparseVLMPlus",
    "UniformGrid",
    "VisionZip",
    "get_method",
    "list_methods",
    "register_method",
]

_METHODS: dict[str, type[Method]] = {}


def register_method(method: type[Method]) -> type[Method]:
    """Make a method known by its name; usable as a decorator."""
    _METHODS[method.name] = method
    return method


for _method in (
    *(Script, ScriptReleased, CDPruner, DivPrune, TRIM, VisionZip),
    *(FastV, PyramidDrop, SparseVLM, SparseVLMPlus),
    *(Random, UniformGrid, AveragePool, AttentionTopK, RelevanceTopK, GraphOnly, DppOnly),
):
    register_method(_method)


def _nearest(word: str, words: list[str]) -> str:
    near = get_close_matches(word, words, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(words)}."


def list_methods() -> list[str]:
    """The names of all methods, in alphabetical order.

    >>> list_methods()  # doctest: +NORMALIZE_WHITESPACE
    ['attention_top_k', 'average_pool', 'cdpruner', 'divprune', 'dpp_only', 'fastv', 'graph_only', 'pyramiddrop',
     'random', 'relevance_top_k', 'script', 'script_released', 'sparsevlm', 'sparsevlm_plus', 'trim', 'uniform_grid',
     'visionzip']
    """
    return sorted({*_METHODS, *(point.name for point in entry_points(group="vlprune.methods"))})


def get_method(name: str, *, preset: str | None = None, **settings: Any) -> Method:
    """The method of that name, with settings: those of a preset, if one is named, and over them those given.

    >>> get_method("script", keep=64).keep
    64
    >>> get_method("visionzip", preset="64")
    VisionZip(keep=64, contextual=10)
    >>> get_method("skript")
    Traceback (most recent call last):
    ...
    ValueError: name='skript': no such method; did you mean 'script'?
    """
    if name not in _METHODS:
        for point in entry_points(group="vlprune.methods"):
            if point.name == name:
                _METHODS[name] = point.load()
    if name not in _METHODS:
        raise ValueError(f"name={name!r}: no such method; {_nearest(name, list_methods())}")
    method = _METHODS[name]
    if preset is not None:
        if not method.presets:
            raise ValueError(f"preset={preset!r}: {name} has no presets.")
        if str(preset) not in method.presets:
            raise ValueError(f"preset={preset!r}: {name} has no such preset; choose from {', '.join(method.presets)}.")
        settings = {**method.presets[str(preset)], **settings}
    known = [field.name for field in fields(method)]
    for setting in settings:
        if setting not in known:
            raise ValueError(f"{setting}={settings[setting]!r}: {name} has no such setting; {_nearest(setting, known)}")
    return method(**settings)

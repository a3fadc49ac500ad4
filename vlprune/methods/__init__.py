"""One file per method, and a registry by name.

A package of your own adds its methods through the entry-point group `vlprune.methods`.
"""

from dataclasses import fields
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import Any

from vlprune.methods.base import Method
from vlprune.methods.dpp_only import DppOnly
from vlprune.methods.fastv import FastV
from vlprune.methods.inside import InsideMethod
from vlprune.methods.pyramiddrop import PyramidDrop
from vlprune.methods.random import Random
from vlprune.methods.script import Script
from vlprune.methods.sparsevlm import SparseVLM, SparseVLMPlus

__all__ = [
    "DppOnly",
    "FastV",
    "InsideMethod",
    "Method",
    "PyramidDrop",
    "Random",
    "Script",
    "SparseVLM",
    "SparseVLMPlus",
    "get_method",
    "list_methods",
    "register_method",
]

_METHODS: dict[str, type[Method]] = {}


def register_method(method: type[Method]) -> type[Method]:
    """Make a method known by its name; usable as a decorator."""
    _METHODS[method.name] = method
    return method


for _method in (Script, Random, DppOnly, FastV, PyramidDrop, SparseVLM, SparseVLMPlus):
    register_method(_method)


def _nearest(word: str, words: list[str]) -> str:
    near = get_close_matches(word, words, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(words)}."


def list_methods() -> list[str]:
    """The names of all methods, in alphabetical order.

    >>> list_methods()
    ['dpp_only', 'fastv', 'pyramiddrop', 'random', 'script', 'sparsevlm', 'sparsevlm_plus']
    """
    return sorted({*_METHODS, *(point.name for point in entry_points(group="vlprune.methods"))})


def get_method(name: str, **settings: Any) -> Method:
    """The method of that name, with settings.

    >>> get_method("script", keep=64).keep
    64
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
    known = [field.name for field in fields(method)]
    for setting in settings:
        if setting not in known:
            raise ValueError(f"{setting}={settings[setting]!r}: {name} has no such setting; {_nearest(setting, known)}")
    return method(**settings)

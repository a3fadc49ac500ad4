"""The methods by name: those of this package, those that are registered, and those of installed packages."""

from collections.abc import Callable
from dataclasses import fields
from difflib import get_close_matches
from typing import Any, TypeVar, overload

from vlprune.entry_points import FAILED, load_entry_points
from vlprune.errors import MethodError, describe_error
from vlprune.methods.base import Method

M = TypeVar("M", bound=type[Method])

#: All methods by name.
METHODS: dict[str, type[Method]] = {}


@overload
def register_method(method: M, *, replace: bool = False) -> M: ...
@overload
def register_method(method: None = None, *, replace: bool = False) -> Callable[[M], M]: ...
def register_method(method: M | None = None, *, replace: bool = False) -> M | Callable[[M], M]:
    """Make a method known by its name; a decorator, with or without arguments.

    A name that is taken by another method is refused, unless `replace=True` puts the new one in its place.

    >>> register_method(type("Script", (Method,), {"name": "script"}))
    Traceback (most recent call last):
    ...
    ValueError: name='script': taken by vlprune.methods.script.Script; pass replace=True to put another in its place.
    """
    if method is None:
        return lambda given: register_method(given, replace=replace)
    if not (isinstance(method, type) and issubclass(method, Method)):
        raise TypeError(f"method={method!r}: a subclass of Method.")
    if not isinstance(getattr(method, "name", None), str):
        raise TypeError(f"method={method!r}: it must have a name.")
    old = METHODS.get(method.name, method)
    if old is not method and not replace:
        raise ValueError(
            f"name={method.name!r}: taken by {old.__module__}.{old.__qualname__}; "
            "pass replace=True to put another in its place."
        )
    METHODS[method.name] = method
    return method


def list_methods() -> list[str]:
    """The names of all methods, in alphabetical order.

    >>> list_methods()  # doctest: +NORMALIZE_WHITESPACE
    ['attention_top_k', 'average_pool', 'cdpruner', 'divprune', 'dpp_only', 'fastv', 'graph_only', 'pyramiddrop',
     'random', 'relevance_top_k', 'script', 'script_plus', 'script_released', 'sparsevlm', 'sparsevlm_plus', 'trim',
     'uniform_grid', 'visionzip']
    """
    _load_methods_of_packages()
    return sorted(METHODS)


def get_method(name: str, *, preset: str | None = None, **settings: Any) -> Method:
    """The method of that name with these settings, over those of a preset if one is named.

    >>> get_method("script", keep=64).keep
    64
    >>> get_method("visionzip", preset="64")
    VisionZip(keep=64, contextual=10)
    >>> get_method("skript")
    Traceback (most recent call last):
    ...
    ValueError: name='skript': no such method; did you mean 'script'?
    """
    if name not in METHODS:
        known = list_methods()
        if name not in known:
            raise ValueError(f"name={name!r}: {explain_missing(name)}")
    method = METHODS[name]
    if preset is not None:
        if not method.presets:
            raise ValueError(f"preset={preset!r}: {name} has no presets.")
        if str(preset) not in method.presets:
            raise ValueError(f"preset={preset!r}: {name} has no such preset; choose from {', '.join(method.presets)}.")
        settings = {**method.presets[str(preset)], **settings}
    names = [field.name for field in fields(method)]
    for setting in settings:
        if setting not in names:
            raise ValueError(f"{setting}={settings[setting]!r}: {name} has no such setting; {_nearest(setting, names)}")
    try:
        return method(**settings)
    except Exception as error:
        explained = isinstance(error, ValueError) and str(error)  # says which setting is wrong
        if explained or method.__module__.startswith("vlprune."):
            raise
        raise MethodError(f"method {name!r} raised {describe_error(error)}.") from error


def explain_missing(name: str) -> str:
    """The end of a sentence about a name that no method has: the nearest one, or that its package is broken.

    >>> explain_missing("skript")
    "no such method; did you mean 'script'?"
    """
    known = list_methods()
    if ("vlprune.methods", name) in FAILED:
        return "it cannot be loaded, as a warning said."
    return f"no such method; {_nearest(name, known)}"


def _nearest(word: str, words: list[str]) -> str:
    near = get_close_matches(word, words, n=1, cutoff=0.4)
    return f"did you mean {near[0]!r}?" if near else f"choose from {', '.join(words)}."


def _load_methods_of_packages() -> None:
    def register(name: str, method: Any) -> None:
        if getattr(method, "name", name) != name:
            raise ValueError(f"its name is {method.name!r}")
        register_method(method)

    load_entry_points("vlprune.methods", "method", register)

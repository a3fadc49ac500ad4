"""The method that `--model_args` of lmms-eval describes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from vlprune.budget import Budget
from vlprune.methods import Method, get_method

BUDGET_FIELDS = ("per_tile", "per_frame", "layer_average")


def method_of(name: str, settings: Mapping[str, Any]) -> Method | None:
    """The method of that name, with a preset behind @ where it has one; None for "none".

    `settings` are the method's fields, or a budget's: `per_tile`, `per_frame` and `layer_average` in place of `keep`.

    >>> method_of("random", {"per_tile": 32}).keep.per_tile, method_of("visionzip@64", {}).contextual
    (32, 10)
    >>> method_of("script", {"tua": 0.2})   # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    ValueError: tua=0.2: no argument of this model, and no setting of script; those are ...
    """
    if name == "none":
        if settings:
            said = next(iter(settings))
            raise ValueError(f"{said}={settings[said]!r}: method=none keeps all tokens and has no settings.")
        return None
    name, _, preset = name.partition("@")
    quotas = {field: settings[field] for field in BUDGET_FIELDS if field in settings}
    own = {field: value for field, value in settings.items() if field not in quotas}
    if quotas and "keep" in own:
        raise ValueError(f"keep={own['keep']!r}: name one budget, keep or {', '.join(quotas)}.")
    if quotas:
        own["keep"] = Budget(**quotas)
    known = [field.name for field in fields(type(get_method(name)))]
    for field, value in own.items():
        if field not in known:
            raise ValueError(
                f"{field}={value!r}: no argument of this model, and no setting of {name}; those are {', '.join(known)}."
            )
    return get_method(name, preset=preset or None, **own)

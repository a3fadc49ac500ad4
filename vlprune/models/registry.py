"""The model families: those of this package, those that are registered, and those of installed packages."""

from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, TypeVar, overload

from vlprune.entry_points import load_entry_points
from vlprune.errors import UnsupportedModel
from vlprune.models.base import Family

F = TypeVar("F", bound="Family | type[Family]")

#: All families by name, the newest last.
FAMILIES: dict[str, Family] = {}


@overload
def register_family(family: F, *, replace: bool = False) -> F: ...
@overload
def register_family(family: None = None, *, replace: bool = False) -> Callable[[F], F]: ...
def register_family(family: F | None = None, *, replace: bool = False) -> F | Callable[[F], F]:
    """Add a family, given as a class or an instance; a decorator, with or without arguments.

    Where several families name one model class, the newest is taken. A name that is taken is refused, unless
    `replace=True` puts the new family in the place of the old one.

    >>> register_family(type("Llava", (FAMILIES["llava"].__class__,), {}))
    Traceback (most recent call last):
    ...
    ValueError: name='llava': taken by vlprune.models.llava.Llava; pass replace=True to put another in its place.
    """
    if family is None:
        return lambda given: register_family(given, replace=replace)
    made = family() if isinstance(family, type) and issubclass(family, Family) else family
    if not isinstance(made, Family):
        raise TypeError(f"family={family!r}: a Family, or a subclass of it.")
    if not isinstance(getattr(made, "name", None), str):
        raise TypeError(f"family={family!r}: it must have a name.")
    old = FAMILIES.get(made.name)
    if old is not None and type(old) is not type(made) and not replace:
        raise ValueError(
            f"name={made.name!r}: taken by {type(old).__module__}.{type(old).__qualname__}; "
            "pass replace=True to put another in its place."
        )
    FAMILIES.pop(made.name, None)
    FAMILIES[made.name] = made
    return family


def list_families() -> list[Family]:
    """All families, in the order of their names.

    >>> "llava" in [family.name for family in list_families()]
    True
    """
    _load_families_of_packages()
    return [FAMILIES[name] for name in sorted(FAMILIES)]


def family_of(model: Any) -> Family:
    """The family of a model, by the names of its class and its parents.

    A class that no family names belongs to the family that names none (the generic one), which refuses what it cannot
    prune.

    >>> import torch
    >>> family_of(torch.nn.Linear(1, 1))  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    vlprune.errors.UnsupportedModel: model is a Linear, which vlprune does not support; the nearest supported ...
    """
    _load_families_of_packages()
    newest_first = list(reversed(FAMILIES.values()))
    for parent in type(model).__mro__:
        for family in newest_first:
            if parent.__name__ in family.classes:
                family.check(model)
                return family
    for family in newest_first:
        if not family.classes:
            family.check(model)
            return family
    raise unsupported_model(model)


def mentions_images(config: Mapping[str, Any]) -> bool:
    """Whether a model's config names anything visual; that of a text model does not.

    >>> mentions_images({"model_type": "bert"}), mentions_images({"mm_vision_tower": "clip"})
    (False, True)
    """
    return any(word in name for name in config for word in ("vision", "image", "visual", "pixel"))


def unsupported_model(model: Any) -> UnsupportedModel:
    """The error that names what was passed, and the nearest supported class of a model that takes images."""
    if isinstance(model, str):
        return UnsupportedModel(
            f"model={model!r}: pass a loaded model, such as AutoModelForImageTextToText.from_pretrained({model!r})."
        )
    name = type(model).__name__
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "to_dict") and not mentions_images(config.to_dict()):
        return UnsupportedModel(
            f"model is a {name}, which takes no images, so there is nothing to prune; pass a multimodal model, such as "
            "a LlavaForConditionalGeneration."
        )
    known = {name: family.name for family in FAMILIES.values() for name in family.classes}
    nearest = get_close_matches(name, known, n=1, cutoff=0.0)[0]
    return UnsupportedModel(
        f"model is a {name}, which vlprune does not support; the nearest supported class is {nearest} "
        f"(family {known[nearest]!r}). See docs/adding-a-model.md."
    )


def _load_families_of_packages() -> None:
    def register(name: str, family: Any) -> None:
        if getattr(family, "name", name) != name:
            raise ValueError(f"its name is {family.name!r}")
        register_family(family)

    load_entry_points("vlprune.models", "model family", register)

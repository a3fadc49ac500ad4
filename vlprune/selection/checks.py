"""Checks of arguments: each raises one sentence that names the argument, its value and what is allowed."""

import math
from collections.abc import Callable, Sequence
from operator import index

import numpy as np
import torch
from torch import Tensor

from .numerics import unit_vectors

_AXIS = {
    "B": "batch", "n": "token", "l": "query token", "d": "channel", "c": "candidate", "g": "token", "k": "rank"
}  # fmt: skip

Condition = tuple[Tensor | bool, Callable[[], str]]
"""A bool or a scalar bool tensor, and a function that returns the sentence to raise where it is False."""


def check_tensor(name: str, value: object, axes: str, *, like: Tensor | None = None, **sizes: int) -> Tensor:
    """Return `value` if it is a floating-point tensor with the named axes, as in "B n d", else raise.

    `sizes` are those of axes that another argument fixes, `like` is a tensor on the device to be on. An axis that is
    named twice has one size. Only the batch may be empty.

    >>> check_tensor("query", torch.zeros(2, 3, 4), "B l d", d=8)
    Traceback (most recent call last):
    ...
    ValueError: query of shape (2, 3, 4): must be (B, l, d) with d=8.
    """
    return _check(name, value, axes, like, sizes, "a floating-point", lambda t: t.is_floating_point())


def check_indices(name: str, value: object, axes: str, *, like: Tensor | None = None, **sizes: int) -> Tensor:
    """Return `value` if it is an int64 tensor with the named axes, else raise."""
    return _check(name, value, axes, like, sizes, "an int64", lambda t: t.dtype == torch.int64)


def check_mask(name: str, value: object, axes: str, *, like: Tensor | None = None, **sizes: int) -> Tensor:
    """Return `value` if it is a bool tensor with the named axes, else raise."""
    return _check(name, value, axes, like, sizes, "a bool", lambda t: t.dtype == torch.bool)


def _check(
    name: str,
    value: object,
    axes: str,
    like: Tensor | None,
    sizes: dict[str, int],
    kind: str,
    right: Callable[[Tensor], bool],
) -> Tensor:
    if not isinstance(value, Tensor):
        raise TypeError(f"{name} of type {type(value).__name__}: must be {kind} tensor.")
    if not right(value):
        raise TypeError(f"{name} of dtype {value.dtype}: must be {kind} tensor.")
    names = axes.split()
    known = dict(sizes)
    shape = tuple(value.shape)
    if len(shape) != len(names) or any(known.setdefault(a, s) != s for a, s in zip(names, shape)):
        fixed = ", ".join(f"{a}={s}" for a, s in sizes.items())
        wanted = f"({', '.join(names)})" + (f" with {fixed}" if fixed else "")
        raise ValueError(f"{name} of shape {shape}: must be {wanted}.")
    for axis, size in zip(names, shape):
        if size == 0 and axis != "B":
            raise ValueError(f"{name} of shape {shape}: must have at least one {_AXIS[axis]}.")
    if like is not None and value.device != like.device:
        raise ValueError(f"{name} on {value.device}: must be on {like.device} like the other arguments.")
    return value


def check_count(name: str, value: int, low: int, high: int, what: str) -> int:
    """Return `value` as an int in [low, high]; `what` says what `high` is.

    >>> check_count("k", 9, 1, 5, "the number of tokens")
    Traceback (most recent call last):
    ...
    ValueError: k=9: must be from 1 to 5, the number of tokens.
    """
    try:
        if isinstance(value, (bool, Tensor)):
            raise TypeError
        number = index(value)
    except TypeError:
        raise TypeError(f"{name}={value!r}: must be an int.") from None
    if not low <= number <= high:
        raise ValueError(f"{name}={number}: must be from {low} to {high}, {what}.")
    return number


def check_real(name: str, value: float, low: float, high: float, what: str = "a number") -> float:
    """Return `value` as a float in [low, high]; `what` says what it is.

    >>> check_real("tau", 2.0, -1.0, 1.0, "a cosine")
    Traceback (most recent call last):
    ...
    ValueError: tau=2.0: a cosine, from -1 to 1.
    """
    if isinstance(value, (bool, Tensor)) or not isinstance(value, (int, float)):
        raise TypeError(f"{name}={value!r}: must be a number.")
    if not low <= value <= high:  # also false for NaN
        limits = f"at least {low:g}" if math.isinf(high) else f"from {low:g} to {high:g}"
        raise ValueError(f"{name}={value!r}: {what}, {limits}.")
    return float(value)


def check_choice(name: str, value: object, allowed: Sequence[object]) -> None:
    """Raise unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: choose from {', '.join(map(repr, allowed))}.")


def require(*conditions: Condition) -> None:
    """Raise the sentence of the first condition that does not hold.

    They are read together, so that a call on a GPU waits for the device once however much it checks.
    """
    known = all(ok for ok, _ in conditions if not isinstance(ok, Tensor))
    flags = [ok for ok, _ in conditions if isinstance(ok, Tensor)]
    if not known or (flags and not bool(torch.stack(flags).all())):
        for ok, words in conditions:
            if not bool(ok):
                raise ValueError(words())


def finite(name: str, value: Tensor, axes: str, summary: Tensor | None = None) -> Condition:
    """The condition that `value` is finite; `summary` is a smaller tensor, finite exactly when it is."""

    def words() -> str:
        where = (~value.isfinite()).nonzero()[0].tolist()
        place = ", ".join(f"{_AXIS[a]} {i}" for a, i in zip(axes.split(), where))
        return f"{name}={value[tuple(where)].item()} at {place}: must be finite in float32."

    told = value if summary is None else summary
    if told.device.type == "cpu":  # numpy's calls cost less
        return bool(np.isfinite(told.detach().numpy()).all()), words
    return told.isfinite().all(), words


def checked_units(features: Tensor) -> Tensor:
    """The features (B, n, d) as unit vectors in float32, after a check that they are finite."""
    x = features.to(torch.float32)
    unit, length = unit_vectors(x)
    require(finite("features", x, "B n d", length))
    return unit

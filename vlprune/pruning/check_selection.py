"""Checks of what a method returned: a mistake in it becomes one sentence that names the method.

Shapes, dtypes and devices are known to the host and always checked. To read the values, the host has to wait for the
device, so they are checked only where the code that chose them is not this package's own.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from vlprune.errors import MethodError, describe_error
from vlprune.methods.base import Method
from vlprune.methods.in_llm import CutResult, InLLMMethod
from vlprune.types import Query, Selection, TokenView

_QUERY_FIELDS = {field.name for field in fields(Query)}


@contextmanager
def naming_method(method: Method) -> Iterator[None]:
    """Within the `with`, what a method of somebody else raises becomes the cause of a `MethodError` that names it.

    A `ValueError` that says anything is its own sentence to the user and stays, and so does a lack of memory, which
    callers go by.
    """
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        explained = isinstance(error, ValueError) and str(error)
        if explained or (type(method).__module__ or "").startswith("vlprune."):
            raise
        raise MethodError(f"method {_name(method)!r} raised {describe_error(error)}.") from error


def call_select(method: Method, view: TokenView, query: Query | None) -> Selection:
    """What `method.select` returns; `MethodError` if it fails, or reads a question that its class did not ask for."""
    with naming_method(method):
        try:
            return method.select(view, query)
        except AttributeError as error:
            if query is None and error.obj is None and error.name in _QUERY_FIELDS:
                raise MethodError(
                    f"method {_name(method)!r} reads query.{error.name}, but its class does not say needs_query = "
                    "True, so query is None."
                ) from error
            raise


def call_cut(method: InLLMMethod, scores: Tensor, hidden: Tensor, m: int) -> CutResult:
    """What `method.cut` returns; `MethodError` if it fails."""
    with naming_method(method):
        return method.cut(scores, hidden, m)


def check_selection(method: Method, selection: Any, view: TokenView, m: int) -> None:
    """Raise unless the selection fits the view, and keeps `m` tokens of each image, or as many as its `sizes` say."""
    name, features = _name(method), view.features
    images, n, width = features.shape
    if not isinstance(selection, Selection):
        raise MethodError(f"method {name!r}: select must return a Selection; it returned {_kind(selection)}.")
    sizes = selection.sizes
    kept, device = selection.kept, features.device
    _check_tensor(name, "kept", kept, (images, m if sizes is None else "m"), device, torch.int64)
    m = kept.shape[1]
    if sizes is not None:
        if m > n:
            raise MethodError(f"method {name!r}: kept must have at most {n} columns, the image's tokens; it has {m}.")
        _check_sizes(name, sizes, images, m)
    for field, shape in (
        ("order", (images, "k")),
        ("gains", (images, "k")),
        ("redundancy", (images, n)),
        ("relevance", (images, n)),
        ("scores", (images, n)),
        ("embeddings", (images, m, width)),
    ):
        if (value := getattr(selection, field)) is not None:
            _check_tensor(name, field, value, shape, device)
    if not _is_own(type(method).select):
        _check_values(name, kept, n, method.reorders, sizes)


def check_cut(method: InLLMMethod, result: Any, scores: Tensor, m: int) -> None:
    """Raise unless a method inside the LLM kept `m` of each image's tokens, which have `scores` (B, n)."""
    name = _name(method)
    if not isinstance(result, CutResult):
        raise MethodError(f"method {name!r}: cut must return a CutResult; it returned {_kind(result)}.")
    _check_tensor(name, "kept", result.kept, (len(scores), m), scores.device, torch.int64)
    if not _is_own(type(method).cut):
        _check_values(name, result.kept, scores.shape[1], False, None)


def _name(method: Method) -> str:
    """The method's name, or its class's where it forgot to have one."""
    return getattr(method, "name", type(method).__name__)


def _kind(value: Any) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _is_own(function: Any) -> bool:
    return (getattr(function, "__module__", None) or "").startswith("vlprune.")


def _check_tensor(
    name: str,
    field: str,
    value: Any,
    shape: tuple[int | str, ...],
    device: torch.device,
    dtype: torch.dtype | None = None,
) -> None:
    """Check a field of the selection; a letter in the shape stands for any number."""
    if not isinstance(value, Tensor):
        raise MethodError(f"method {name!r}: {field} must be a tensor; it is {_kind(value)}.")
    if dtype is not None and value.dtype != dtype:
        raise MethodError(f"method {name!r}: {field} must be of dtype {dtype}; it is of {value.dtype}.")
    fits = value.ndim == len(shape) and all(isinstance(a, str) or a == b for a, b in zip(shape, value.shape))
    if not fits:
        says = f"({', '.join(map(str, shape))})"
        raise MethodError(f"method {name!r}: {field} must be of shape {says}; it is of {tuple(value.shape)}.")
    if value.device != device:
        raise MethodError(f"method {name!r}: {field} must be on {device}, as the tokens are; it is on {value.device}.")


def _check_sizes(name: str, sizes: Any, images: int, m: int) -> None:
    whole = isinstance(sizes, (tuple, list)) and all(type(size) is int for size in sizes)
    if not whole or len(sizes) != images or not all(1 <= size <= m for size in sizes):
        raise MethodError(
            f"method {name!r}: sizes must be a tuple of {images} whole numbers from 1 to {m}, one per image; "
            f"it is {sizes!r}."
        )


def _check_values(name: str, kept: Tensor, n: int, reorders: bool, sizes: Any) -> None:
    """Check the numbers of the kept tokens; waits for the device."""
    for b, row in enumerate(kept.tolist()):
        row = row[: sizes[b]] if sizes is not None else row
        wrong = next((token for token in row if not 0 <= token < n), None)
        if wrong is not None:
            raise MethodError(f"method {name!r}: kept must be numbers from 0 to {n - 1}; kept[{b}] has {wrong}.")
        ranked = sorted(row)
        twice = next((a for a, b in pairwise(ranked) if a == b), None)
        if twice is not None:
            raise MethodError(f"method {name!r}: kept must have each token once; kept[{b}] has {twice} more than once.")
        if row != ranked and not reorders:
            before, after = next((a, b) for a, b in pairwise(row) if a > b)
            raise MethodError(
                f"method {name!r}: kept must be ascending unless the class says reorders = True; kept[{b}] has "
                f"{after} after {before} (Selection.from_order sorts)."
            )

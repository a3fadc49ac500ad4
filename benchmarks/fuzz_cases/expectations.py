"""What a case expects, and how it says that it did not come."""

import random
from collections.abc import Callable
from typing import Any

import numpy as np

#: From a random source to the kind of case that was drawn; raises `Wrong` if it went wrong.
Case = Callable[[random.Random], str]


class Wrong(Exception):
    """What should not have happened, in a sentence."""


def expect(right: Any, what: str) -> None:
    if not right:
        raise Wrong(what)


def expect_close(what: str, found: np.ndarray, wanted: np.ndarray, rtol: float, atol: float) -> None:
    if not (np.abs(found - wanted) <= atol + rtol * np.abs(wanted)).all():  # the words are costly, so not before
        raise Wrong(f"{what} {found} is not {wanted}")


def one_sentence(error: BaseException) -> None:
    """An error is one line that ends like a sentence."""
    text = str(error)
    expect(text and "\n" not in text and text.rstrip(")").endswith("."), f"not one sentence: {text[:200]!r}")

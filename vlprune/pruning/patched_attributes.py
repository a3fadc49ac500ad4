"""Attributes for a while."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def patched_attributes(thing: Any, own: dict[str, Any]) -> Iterator[None]:
    """Inside, an instance has these attributes of its own."""
    before = {name: thing.__dict__[name] for name in own if name in thing.__dict__}
    thing.__dict__.update(own)
    try:
        yield
    finally:
        for name in own:
            del thing.__dict__[name]
        thing.__dict__.update(before)

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


class Patches:
    """Attributes of many things, until `undo`. No context is held open: models are deep-copied."""

    def __init__(self) -> None:
        self._before: list[tuple[Any, str, Any]] = []

    def add(self, thing: Any, name: str, value: Any) -> None:
        """Give an instance an attribute of its own."""
        self._before.append((thing, name, thing.__dict__.get(name)))
        thing.__dict__[name] = value

    def undo(self) -> None:
        """Take all of them back, the last one first."""
        for thing, name, before in reversed(self._before):
            if before is None:
                thing.__dict__.pop(name, None)
            else:
                thing.__dict__[name] = before
        self._before = []

"""Registries of methods and families that a test may change."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from vlprune import entry_points
from vlprune.methods import registry as methods
from vlprune.models import registry as models


@contextmanager
def isolated_registries() -> Iterator[None]:
    """Inside, methods and families can be registered; afterwards they are forgotten."""
    loaded, failed = set(entry_points.LOADED), set(entry_points.FAILED)
    with mock.patch.dict(methods.METHODS), mock.patch.dict(models.FAMILIES):
        try:
            yield
        finally:
            for names, before in ((entry_points.LOADED, loaded), (entry_points.FAILED, failed)):
                names.intersection_update(before)


@contextmanager
def installed(group: str, **points: object) -> Iterator[None]:
    """Inside, a package "plugin" is installed whose entry points of a group are these values, or raise these errors."""

    class Point:
        def __init__(self, name: str, value: object) -> None:
            self.name, self.value, self.made = name, f"plugin:{name}", value
            self.dist = mock.Mock()
            self.dist.name = "plugin"

        def load(self) -> object:
            if isinstance(self.made, Exception):
                raise self.made
            return self.made

    def find(asked: str) -> list[Point]:
        return [Point(name, value) for name, value in points.items()] if asked == group else []

    with isolated_registries(), mock.patch.object(entry_points, "find_entry_points", find):
        yield

"""What installed packages add through entry points, loaded when it is first needed."""

import functools
import warnings
from collections.abc import Callable
from importlib import metadata
from typing import Any

from vlprune.errors import describe_error

#: Entry points that were loaded, or failed to load: (group, name, value).
LOADED: set[tuple[str, str, str]] = set()
#: Those that failed to load: (group, name).
FAILED: set[tuple[str, str]] = set()


@functools.cache  # looking through all installed packages takes milliseconds
def find_entry_points(group: str) -> tuple[Any, ...]:
    """The entry points of a group, as the installed packages were when they were first asked for."""
    return tuple(metadata.entry_points(group=group))


def load_entry_points(group: str, kind: str, register: Callable[[str, Any], object]) -> None:
    """Call `register(name, value)` for every entry point of a group that is not loaded yet.

    One that cannot be loaded, or that `register` refuses, does no harm: a warning names it, once, and the others are
    loaded. `kind` is what the warning calls it, such as "method".
    """
    for point in find_entry_points(group):
        key = (group, point.name, point.value)
        if key in LOADED:
            continue
        LOADED.add(key)
        try:
            register(point.name, point.load())
        except Exception as error:
            package = point.dist.name if point.dist is not None else "unknown"
            FAILED.add((group, point.name))
            warnings.warn(
                f"vlprune: the {kind} {point.name!r} of the package {package!r} cannot be loaded "
                f"({describe_error(error)}).",
                stacklevel=4,
            )

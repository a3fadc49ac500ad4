"""What commands print on: the console for tables, and progress bars."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress


def console() -> Console:
    """The standard output, as wide as the terminal, or 120 characters where it is none."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 120)


def progress_bar() -> Progress:
    """A bar on the standard error, shown only where that is a terminal, and gone at the end."""
    from rich.console import Console
    from rich.progress import Progress

    return Progress(console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty())

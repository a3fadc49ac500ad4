"""What commands print on: the console for tables, and on the standard error how far they have come."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress

USUAL_WIDTH = 80


def console() -> Console:
    """The standard output, as wide as the terminal; where it is none, as COLUMNS says, or else 80 characters."""
    from rich.console import Console

    said = os.environ.get("COLUMNS", "")
    return Console(width=None if sys.stdout.isatty() else int(said) if said.isdigit() and int(said) else USUAL_WIDTH)


def print_text(text: str) -> None:
    """Print text as it is, broken between words where the terminal ends."""
    console().print(text, markup=False, highlight=False)


class Steps:
    """Shows what is being done, and how much of it is done, on a bar or nowhere."""

    def __init__(self, bar: Progress | None = None, first: str = "") -> None:
        self._bar = bar
        if bar is not None:
            bar.add_task(first, total=None)

    def _update(self, **changes: Any) -> None:
        if self._bar is not None:
            # new words are shown at once: a short step is over before the next drawing
            new = changes.get("description") not in (None, self._bar.tasks[0].description)
            self._bar.update(self._bar.task_ids[0], refresh=new, **changes)

    def begin(self, what: str, total: int | None = None) -> None:
        """Say what is done from now on, in so many parts if that is known."""
        if self._bar is not None:
            (task,) = self._bar.tasks
            task.total, task.finished_time = total, None  # or else the clock and the spinner stand still
        self._update(description=what, completed=0)

    def advance(self, what: str | None = None, count: int = 1) -> None:
        """Say that so many parts are done, and what comes now."""
        self._update(description=what, advance=count)

    def expect(self, count: int) -> None:
        """Say that there are so many parts more."""
        if self._bar is not None:
            self._update(total=(self._bar.tasks[0].total or 0) + count)

    def reach(self, done: int, total: int | None) -> None:
        """Say how many parts are done, and of how many."""
        self._update(completed=done, total=total)

    @contextmanager
    def follow(self, model: Any) -> Iterator[None]:
        """Say within the `with` whether the model is at its vision tower or at the answer."""
        handles = []
        if self._bar is not None:
            decoder = model.get_decoder()
            for child in model.base_model.children():
                what = "answering" if child is decoder else "vision"
                handles.append(child.register_forward_pre_hook(lambda *_, what=what: self.begin(what)))
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def show_steps(first: str, *, quiet: bool = False) -> Iterator[Steps]:
    """Show what is done within the `with`, from its first step on.

    Where the standard error is a terminal, a bar shows it, and is gone at the end. Elsewhere the first step is said in
    one plain line, but not if it is to be `quiet`. Nothing heavy is loaded for it.
    """
    if not sys.stderr.isatty():
        if not quiet:
            print(f"vlprune: {first} ...", file=sys.stderr, flush=True)
        yield Steps()
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    looks = (SpinnerColumn(), TextColumn("{task.description}", markup=False), BarColumn(20), TimeElapsedColumn())
    screen = Console(stderr=True)
    screen.width = max(1, screen.width - len("^C"))  # which would begin a new line, and the bar could not be erased
    options: dict[str, Any] = {"console": screen, "transient": True, "refresh_per_second": 5}
    with Progress(*looks, TimeRemainingColumn(), **options) as bar:
        yield Steps(bar, first)

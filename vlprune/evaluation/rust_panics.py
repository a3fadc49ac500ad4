"""What a library in Rust writes to the standard error when it panics, kept from users."""

from __future__ import annotations

import os
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager

#: The standard error is the process's: threads that load models take turns.
_LOCK = threading.RLock()


@contextmanager
def without_panic_reports() -> Iterator[None]:
    """Inside, what comes to the process's standard error is held back; it is written at the end, unless Rust panicked.

    A panic reaches Python as an exception, and is a sentence there; but Rust has by then written a report of its own,
    with a stack of a hundred lines where RUST_BACKTRACE is set, past Python and straight to the file.
    """
    with _LOCK, tempfile.TemporaryFile() as held:
        try:
            shown = os.dup(2)
        except OSError:  # it is closed: nobody reads it
            yield
            return
        panicked = False
        sys.stderr.flush()
        os.dup2(held.fileno(), 2)
        try:
            yield
        except BaseException as error:
            panicked = any(type(one).__name__ == "PanicException" for one in (error, error.__cause__))
            raise
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)
            if not panicked:
                held.seek(0)
                os.write(2, held.read())

"""`vlprune studio` in a process of its own, as users start it."""

import re
import subprocess
import sys
from contextlib import contextmanager

import pytest


@contextmanager
def opened_studio(*words, **options):
    """The address at which `python WORDS` serves the page; `options` go to the process, which then ends."""
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, **options
    )
    lines = []
    for line in process.stdout:
        lines.append(line)
        found = re.search(r"the studio is open at (http://127\.0\.0\.1:\d+/)", line)
        if found:
            break
    else:
        pytest.fail("".join(lines))
    yield found[1]
    process.terminate()
    process.wait(timeout=30)

"""Runs Triton kernels on a CPU."""

import os
import subprocess
import sys

import pytest


def run_interpreted(module):
    """Run a test module as a program in which Triton interprets its kernels: that is decided when it is imported."""
    pytest.importorskip("triton")
    surroundings = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([sys.executable, "-m", module], env=surroundings, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr

"""Runs Triton kernels on a CPU."""

import functools
import inspect
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


def look_once():
    """Let the interpreter look through Triton's language once; it does so at every call of a kernel's function."""
    from triton import language
    from triton.runtime import interpreter

    @functools.cache
    def builtins(package):
        return [(name, one) for name, one in inspect.getmembers(package) if language.core.is_builtin(one)]

    def patch(package, *more):
        for name, builtin in builtins(package):
            if getattr(package, name) is builtin:  # not replaced yet
                interpreter._patch_attr(package, name, builtin, *more)

    for package in (language, language.core, language.tensor, language.math):  # as they are before any call
        builtins(package)
    interpreter._patch_builtin = patch

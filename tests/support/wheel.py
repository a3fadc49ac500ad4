"""The package as a wheel brings it, without the checkout."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def unpack_wheel(folder):
    """Build the wheel and unpack it into `folder`/package, which is returned; without hatchling the test is skipped."""
    pytest.importorskip("hatchling")
    built = Path(folder) / "built"
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(built)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = built.glob("*.whl")
    package = Path(folder) / "package"
    zipfile.ZipFile(wheel).extractall(package)
    return package


def environment(package):
    """The environment variables with which Python imports that package before any other."""
    return {**os.environ, "PYTHONPATH": str(package), "PYTHONSAFEPATH": "1"}

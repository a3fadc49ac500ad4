"""What some versions of other packages cannot do."""

import importlib.util
from importlib.metadata import version

import pytest
import torch
from packaging.version import Version

needs_compile = pytest.mark.skipif(
    Version(torch.__version__).release < (2, 7), reason="torch 2.6 cannot compile transformers' own model either"
)

needs_interpreter = pytest.mark.skipif(
    importlib.util.find_spec("triton") is not None and Version(version("triton")).release < (3, 3),
    reason="Triton 3.2's interpreter knows no booleans",
)

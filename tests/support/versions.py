"""What some versions of other packages cannot do."""

import pytest
import torch
from packaging.version import Version

needs_compile = pytest.mark.skipif(
    Version(torch.__version__).release < (2, 7), reason="torch 2.6 cannot compile transformers' own model either"
)

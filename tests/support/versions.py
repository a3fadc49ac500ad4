"""What some versions of other packages cannot do."""

import pytest
import torch
from packaging.version import Version

try:
    import triton
except ImportError:
    triton = None

needs_compile = pytest.mark.skipif(
    Version(torch.__version__).release < (2, 7), reason="torch 2.6 cannot compile transformers' own model either"
)

needs_interpreter = pytest.mark.skipif(
    not torch.cuda.is_available() and triton is not None and Version(triton.__version__).release < (3, 3),
    reason="Triton 3.2's interpreter knows no booleans",
)

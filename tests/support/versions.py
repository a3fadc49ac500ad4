"""What some versions of other packages cannot do."""

from importlib.metadata import version

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

needs_interpreted_loops = pytest.mark.skipif(
    not torch.cuda.is_available()
    and triton is not None
    and Version(triton.__version__).release < (3, 3)
    and Version(version("numpy")).release >= (2, 4),
    reason="Triton 3.2's interpreter turns arrays of one number into integers, which NumPy 2.4 refuses",
)

needs_even_frames = pytest.mark.skipif(
    Version(version("transformers")).release < (5, 18),
    reason="transformers 5.17 takes steps of a whole number of frames, and none of a video's end",
)

needs_newer_matplotlib = pytest.mark.skipif(
    Version(version("matplotlib")).release < (3, 11), reason="matplotlib 3.10 lays the same picture out otherwise"
)

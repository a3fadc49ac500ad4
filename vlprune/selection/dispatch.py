"""When the fused GPU kernels are used, and how to switch them off.

Tensors on a CUDA device go to `vlprune.selection.fused` (Triton), unless `VLPRUNE_FUSED=0` is in the environment or
`use_fused(False)` in force. All others go to plain torch; so does everything, after one warning, where they cannot run.
"""

import importlib
import importlib.util
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from types import ModuleType

import torch
from torch import Tensor

_enabled = os.environ.get("VLPRUNE_FUSED", "1") != "0"


@contextmanager
def use_fused(on: bool) -> Iterator[None]:
    """Within the block, use the fused kernels for tensors on a GPU, or plain torch.

    >>> with use_fused(False):
    ...     fused_for(torch.ones(1, 2, 3)) is None
    True
    """
    global _enabled
    old, _enabled = _enabled, bool(on)
    try:
        yield
    finally:
        _enabled = old


def fused_for(x: Tensor) -> ModuleType | None:
    """The fused kernels if they are to be used for `x`, else None."""
    if x.device.type != "cuda" or not _enabled or x.shape[0] == 0:
        return None
    return _kernels(x.device.index)


@cache  # one import, and one warning a device
def _kernels(device: int) -> ModuleType | None:
    reason = ""
    if torch.version.cuda is None:
        reason = "they need an NVIDIA GPU"
    elif importlib.util.find_spec("triton") is None:
        reason = "Triton is not installed"
    elif tuple(map(int, importlib.import_module("triton").__version__.split(".")[:2])) < (3, 4):
        reason = "they need Triton 3.4 or newer"
    elif torch.cuda.get_device_capability(device) < (8, 0):
        reason = f"{torch.cuda.get_device_name(device)} is older than sm_80"
    if not reason:
        kernels = importlib.import_module("vlprune.selection.fused")
        try:
            _build_one(kernels, device)
            return kernels
        except torch.OutOfMemoryError:  # of the moment: the next call tries again
            raise
        except Exception as error:  # no C compiler, a cache folder that is full or read-only, a driver too old
            reason = f"they cannot be built ({(str(error).splitlines() or [type(error).__name__])[0].rstrip('.')})"
    warnings.warn(f"vlprune: the fused kernels are not used: {reason}. Selection runs in torch.", stacklevel=4)
    return None


def _build_one(kernels: ModuleType, device: int) -> None:
    """Build and run a small kernel: what keeps Triton from building keeps it from building this one."""
    kernels.graph_keep(torch.zeros(1, 2, device=torch.device("cuda", device)), 1)

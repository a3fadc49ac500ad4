"""Launch Triton kernels in a few microseconds, not the fifty in which Triton looks over their arguments.

What Triton compiles depends on the arguments' types, on integers' values and on pointers' alignment. A call that is
alike in all of them goes straight to the kernel compiled for the first such call.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

_runners: dict[tuple[Any, ...], Any] = {}


def launch(
    kernel: Any, grid: tuple[int, int], tensors: tuple[Tensor, ...], numbers: tuple[float, ...],
    *, options: dict[str, Any], **constants: Any,
) -> None:  # fmt: skip
    """Run `kernel` on `grid`. Its parameters are tensors, then numbers, then `constants`, in their order."""
    if not hasattr(kernel, "device_caches"):  # Triton's interpreter
        known = {name: value for name, value in options.items() if name != "launch_cooperative_grid"}
        kernel[grid](*tensors, *numbers, **constants, **known)
        return
    whole = (*grid, 1)
    addresses = [tensor.data_ptr() for tensor in tensors]
    device = torch._C._cuda_getDevice()
    settings = (*constants.values(), *options.values())
    odd = tuple([address % 16 for address in addresses])
    key = (id(kernel), device, grid, tuple([tensor.dtype for tensor in tensors]), odd, numbers, settings)
    runner = _runners.get(key)
    if runner is None:
        if len(_runners) >= 10_000:  # of ever new sizes
            _runners.clear()
        _runners[key] = kernel[grid](*tensors, *numbers, **constants, **options)[whole]
    else:
        runner(*addresses, *numbers, *constants.values(), stream=torch._C._cuda_getCurrentRawStream(device))


def blocks(n: int, size: int) -> int:
    """How many blocks of `size` cover n."""
    return -(-n // size)


def power(n: int) -> int:
    """The least power of 2 that is no less than n."""
    return 1 << (n - 1).bit_length()


@cache
def is_roomy(device: torch.device) -> bool:
    """Whether a program can have 160 KiB of shared memory, as on A100 and H100; desktop GPUs have 99."""
    if device.type != "cuda":
        return False
    return torch.cuda.get_device_capability(device) in ((8, 0), (8, 7), (9, 0), (10, 0), (10, 3), (11, 0))

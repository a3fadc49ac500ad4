"""Documented code says "cuda"; where there is no GPU, that is the CPU."""

from contextlib import ExitStack, contextmanager
from unittest.mock import patch

import torch
from transformers import PreTrainedModel


@contextmanager
def cuda_or_cpu():
    """Inside, models and tensors that are moved to "cuda" go to the CPU if there is no GPU."""
    with ExitStack() as stack:
        if not torch.cuda.is_available():
            for kind in (PreTrainedModel, torch.Tensor):
                stack.enter_context(patch.object(kind, "to", _without_cuda(kind.to)))
        yield


def _without_cuda(to):
    def moved(self, *args, **kwargs):
        kwargs = {name: "cpu" if value == "cuda" else value for name, value in kwargs.items()}
        return to(self, *("cpu" if arg == "cuda" else arg for arg in args), **kwargs)

    return moved

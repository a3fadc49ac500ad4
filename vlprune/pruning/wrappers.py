"""Models inside wrappers: PEFT's adapters keep the real model, and call it past PyTorch's hooks."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from vlprune.pruning.patched_attributes import patched_attributes


def unwrap(model: Any) -> Any:
    """The model inside a PEFT wrapper, whose `generate` calls that model's; any other model itself."""
    return model.get_base_model() if _is_peft(model) else model


@contextmanager
def calls_with_hooks(model: Any) -> Iterator[None]:
    """Inside, a PEFT wrapper calls its model, hooks and all, and not the model's `forward` alone."""
    tuner = getattr(model, "base_model", None)
    if not _is_peft(model) or tuner is None or tuner is model.get_base_model():
        yield
        return
    with patched_attributes(tuner, {"forward": model.get_base_model()}):
        yield


def _is_peft(model: Any) -> bool:
    return hasattr(model, "peft_config") and callable(getattr(model, "get_base_model", None))

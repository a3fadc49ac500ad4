"""Models inside wrappers: PEFT's adapters, `torch.compile`, and those that train on several GPUs."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vlprune.errors import UnsupportedModel
from vlprune.pruning.patched_attributes import patched_attributes


def unwrap(model: Any) -> Any:
    """The model inside wrappers, which call it, or its `generate`; any other model itself."""
    inner = _inside(model)
    return model if inner is None else unwrap(inner)


def _inside(model: Any) -> Any:
    """What a wrapper holds; None for what is no wrapper."""
    parts = vars(model).get("_modules", {}) if isinstance(model, torch.nn.Module) else {}
    if "_orig_mod" in parts:  # torch.compile
        return parts["_orig_mod"]
    if isinstance(model, torch.nn.DataParallel) and len(model.device_ids) > 1:
        raise UnsupportedModel(
            f"model is a DataParallel over {len(model.device_ids)} GPUs, which copies the model in every call, and not "
            "its pruner: use DistributedDataParallel."
        )
    if isinstance(model, (torch.nn.DataParallel, torch.nn.parallel.DistributedDataParallel)):
        return model.module
    if _is_peft(model):
        inner = model.get_base_model()
        return None if inner is model else inner
    return parts["model"] if _is_peft_tuner(model) else None


@contextmanager
def calls_with_hooks(model: Any) -> Iterator[None]:
    """Inside, PEFT's wrappers call their model, hooks and all, and not the model's `forward` alone."""
    inner, tuner = unwrap(model), model
    while _inside(tuner) is not None and not _is_peft_tuner(tuner):
        tuner = tuner.base_model if _is_peft(tuner) and tuner.base_model is not inner else _inside(tuner)
    if not _is_peft_tuner(tuner):
        yield
        return
    with patched_attributes(tuner, {"forward": inner}):
        yield


@contextmanager
def without_stale_graphs(model: Any) -> Iterator[None]:
    """Let `torch.compile` trace a compiled model anew, inside and afterwards, whether it looks for new hooks or not.

    torch 2.13 looks: without this it was right with methods before the LLM and inside it, wrapped and in place, also
    where the guards on modules are left out. But its setting `skip_nnmodule_hook_guards` is on: it need not look.
    """
    if not _is_compiled(model):
        yield
        return
    torch.compiler.reset()
    try:
        yield
    finally:
        torch.compiler.reset()


def _is_compiled(model: Any) -> bool:
    """Whether `torch.compile` has wrapped the model, or one of its wrappers, or compiles its calls in place."""
    while model is not None:
        if "_orig_mod" in vars(model).get("_modules", {}) or getattr(model, "_compiled_call_impl", None) is not None:
            return True
        model = _inside(model)
    return False


def _is_peft(model: Any) -> bool:
    return hasattr(model, "peft_config") and callable(getattr(model, "get_base_model", None))


def _is_peft_tuner(model: Any) -> bool:
    """Whether this is what PEFT puts between its wrapper and a model whose layers it has changed."""
    return any(
        parent.__module__.startswith("peft.") and parent.__name__ == "BaseTuner" for parent in type(model).__mro__
    )

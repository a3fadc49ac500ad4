"""A pretended device: tensors with the CPU's values that say they lie elsewhere, and note when the host waits for them.

What waits is what waits in CUDA: a value read by the host, an operation whose result has as many entries as a value
says, and a copy from one side to the other, unless it comes from pinned memory and is asked not to.
"""

import traceback
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

import vlprune

#: Where the packages are whose lines are named; not by their names alone, for a clone may lie in a folder `vlprune`.
PACKAGES = [Path(package.__file__).parent for package in (vlprune, transformers)]
PLACE = torch.device("meta")  # the one device that every torch has beside the CPU
aten = torch.ops.aten
READS = {aten._local_scalar_dense, aten.equal, aten.is_nonzero, aten.item}
SIZED_BY_VALUES = {aten.nonzero, aten.masked_select, aten.unique_dim, aten._unique2, aten.unique_consecutive}
INDEXES = {aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_}


class There(torch.Tensor):
    """A tensor on the pretended device; `values` are the real ones, on the CPU."""

    values: torch.Tensor

    @staticmethod
    def __new__(cls, values):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            values.shape,
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device=PLACE,
        )
        made.values = values
        return made

    def __repr__(self):
        return f"There({self.values})"

    def tolist(self):
        return self.cpu().tolist()

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        return _done(function, args, kwargs or {}, [])


class Device(TorchDispatchMode):
    """Inside, tensors can be made on `PLACE`, and `waits` collects (what waited, the line of code that did it)."""

    def __init__(self):
        super().__init__()
        self.waits: list[tuple[str, str]] = []

    def __enter__(self):
        make = torch.tensor

        def tensor(data, *, device=None, **options):  # torch's own copies out of sight
            made = make(data, **options)
            return made if device is None else made.to(device)

        def new_tensor(self, data, *, dtype=None, device=None):
            return tensor(data, dtype=dtype or self.dtype, device=device or self.device)

        self._patches = [
            patch.object(torch, "tensor", tensor),
            patch.object(torch.Tensor, "new_tensor", new_tensor),
            patch.object(torch.Tensor, "pin_memory", lambda values: values),  # which only a real device can
        ]
        for one in self._patches:
            one.start()
        return super().__enter__()

    def __exit__(self, *error):
        for one in self._patches:
            one.stop()
        return super().__exit__(*error)

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return _done(function, args, kwargs or {}, self.waits)


def _done(function: Any, args: Any, kwargs: dict[str, Any], waits: list[tuple[str, str]]) -> Any:
    flat = tree_flatten((args, kwargs))[0]
    there = {id(one.values): one for one in flat if isinstance(one, There)}
    target = kwargs.get("device")
    packet = function.overloadpacket
    if _waits(packet, args, kwargs, bool(there)):
        waits.append((str(packet), _caller()))
    there_now = bool(there) if target is None else _is_place(target)
    kwargs = {name: value for name, value in kwargs.items() if name != "device" or not _is_place(value)}
    args, kwargs = tree_map(lambda one: one.values if isinstance(one, There) else one, (args, kwargs))
    if packet is aten._to_copy:
        kwargs.pop("non_blocking", None)
    made = function(*args, **kwargs)

    def wrapped(one: Any) -> Any:
        if not isinstance(one, torch.Tensor):
            return one
        return there[id(one)] if id(one) in there else There(one) if there_now else one

    return tree_map(wrapped, made)


def _is_place(device: Any) -> bool:
    return device is not None and torch.device(device).type == PLACE.type


def _waits(packet: Any, args: Any, kwargs: dict[str, Any], there: bool) -> bool:
    if packet in READS or packet in SIZED_BY_VALUES:
        return there
    if packet in INDEXES and isinstance(args[0], There):
        found = [index for index in args[1] if isinstance(index, torch.Tensor)]
        return any(index.dtype in (torch.bool, torch.uint8) or not isinstance(index, There) for index in found)
    if packet is aten._to_copy and kwargs.get("device") is not None and args[0].numel():
        here, goes = isinstance(args[0], There), _is_place(kwargs["device"])
        return here != goes and not (goes and kwargs.get("non_blocking"))
    if packet is aten.copy_:
        both = [isinstance(one, There) for one in args[:2]]
        return both[0] != both[1] and args[1].ndim > 0
    return False


def _caller() -> str:
    """The innermost line of vlprune or transformers."""
    for frame in reversed(traceback.extract_stack()):
        for package in PACKAGES:
            if Path(frame.filename).is_relative_to(package):
                inside = Path(frame.filename).relative_to(package.parent).as_posix()
                return f"{inside}:{frame.lineno} in {frame.name}: {frame.line}"
    return "elsewhere"


def moved(thing: Any) -> Any:
    """A model, or a dict of tensors, on the pretended device."""
    if isinstance(thing, dict):
        return {name: There(value) if isinstance(value, torch.Tensor) else value for name, value in thing.items()}
    for module in thing.modules():
        for name, value in module._parameters.items():
            if value is not None:
                module._parameters[name] = torch.nn.Parameter(There(value.data), requires_grad=False)
        for name, value in module._buffers.items():
            if value is not None:
                module._buffers[name] = There(value)
    return thing

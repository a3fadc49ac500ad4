"""A stand-in for CUDA graphs on any device: the operations of one run, done again on the same memory, without Python.

A value that was read from a tensor, or computed by Python, is what it was when the tape was made; so a test with
this capture fails where a captured function depends on one.
"""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

#: Operations that read a value on the host, which a capture does not permit.
READS = ("aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::is_nonzero", "aten::equal")


class Tape(TorchDispatchMode):
    """Records every operation that runs inside it."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func._schema.name in READS:
            raise RuntimeError(f"{func._schema.name} is not permitted when stream is capturing")
        out = func(*args, **(kwargs or {}))
        self.calls.append((func, args, kwargs or {}, out))
        return out

    def play(self, result):
        """Run the operations again; tensors that were made then are made anew, all others are the same memory."""
        now = {}

        def fresh(tensor):
            return now.get(id(tensor), tensor)

        def given(one):  # an operation's arguments are numbers, tensors and lists of them: trees would take longer
            if isinstance(one, Tensor):
                return fresh(one)
            return type(one)([given(part) for part in one]) if type(one) in (list, tuple) else one

        for func, args, kwargs, out in self.calls:
            new = func(*map(given, args), **{name: given(one) for name, one in kwargs.items()})
            for old, value in [(out, new)] if isinstance(out, Tensor) else zip(tree_leaves(out), tree_leaves(new)):
                if isinstance(old, Tensor):
                    now[id(old)] = value
        return tree_map_only(Tensor, fresh, result)


def capture_on_tape(function):
    """Capture a function on a tape: a `vlprune.cuda_graphs.capture.Capture`."""
    function()
    tape = Tape()
    with tape:
        result = function()

    def replay():
        with torch.no_grad():
            for old, new in zip(tree_leaves(result), tree_leaves(tape.play(result))):
                if isinstance(old, Tensor):
                    old.copy_(new)  # a graph returns the same memory each time
        return result

    return replay

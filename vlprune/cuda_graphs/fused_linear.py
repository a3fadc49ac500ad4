"""A decoder's matrix products, fewer and larger: queries, keys and values as one; gate and up as one.

A GPU's multiprocessors share the tiles of a product, and small products leave many of them idle.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vlprune.cuda_graphs.fused_attention import Attention, usable
from vlprune.cuda_graphs.fused_norm_mlp import Gated, Norm, plain_mlp, plain_norm

#: Children of a module that its forward calls on the same input, in the order of the calls.
GROUPS = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))


class Joint(nn.Module):
    """Linear layers side by side: one product for the first that is called, of which the others take their parts."""

    def __init__(self, layers: list[Any]) -> None:
        super().__init__()
        self.sizes = [layer.out_features for layer in layers]
        self.weight = _side_by_side([layer.weight for layer in layers])
        self.bias = None if layers[0].bias is None else _side_by_side([layer.bias for layer in layers])
        self.input: Tensor | None = None
        self.parts: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def part(self, i: int, x: Tensor) -> Tensor:
        if x is not self.input:
            self.input, self.parts = x, list(self(x).split(self.sizes, dim=-1))
        part = self.parts[i]
        if i == len(self.sizes) - 1:  # hold nothing: what is compiled must find this as it was found before
            self.input, self.parts = None, []
        return part


class Part(nn.Module):
    """Stands in for one of the layers."""

    def __init__(self, joint: Joint, number: int) -> None:
        super().__init__()
        self.joint, self.number = joint, number

    def forward(self, x: Tensor) -> Tensor:
        return self.joint.part(self.number, x)


class Projections:
    """The groups found inside a decoder: inside `with projections.joined()` each runs as one product.

    A group's weights are moved to lie one behind the other, and its layers hold views of that memory from then on: same
    names, same values, no second copy. Layers that are more than a plain `nn.Linear` are left as they are.
    """

    def __init__(self, decoder: nn.Module) -> None:
        self._parts: list[tuple[nn.Module, str, nn.Module]] = []
        self._short: list[tuple[nn.Module, str, nn.Module]] = []
        self._between: list[tuple[nn.Module, str, nn.Module]] = []
        for path, parent in list(decoder.named_modules()):
            above, _, own = path.rpartition(".")
            holder = decoder.get_submodule(above)
            if plain_norm(parent):
                self._between.append((holder, own, Norm(parent)))
            for names in GROUPS:
                layers = [getattr(parent, name, None) for name in names]
                if _plain(layers):
                    joint = Joint(layers)
                    self._parts += [(parent, name, Part(joint, i)) for i, name in enumerate(names)]
                    if usable(parent, joint.weight):
                        self._short.append((holder, own, Attention(parent, joint)))
                    if plain_mlp(parent, joint.weight):
                        self._between.append((holder, own, Gated(parent, joint)))

    @contextmanager
    def joined(self, short: bool, compiled: bool) -> Iterator[None]:
        """`short`: a prompt of at most `vlprune.cuda_graphs.fused_attention.LONGEST` tokens is read, without padding.

        `compiled`: a compiler makes what lies between the products.
        """
        with ExitStack() as stack:
            for parent, name, part in (
                *self._parts,
                *(self._short if short else ()),
                *(() if compiled else self._between),
            ):
                stack.callback(parent._modules.__setitem__, name, parent._modules[name])
                parent._modules[name] = part
            yield


def _plain(layers: list[Any]) -> bool:
    """Whether nobody has changed what these layers do, and they can lie side by side."""
    if any(type(layer) is not nn.Linear or "forward" in layer.__dict__ for layer in layers):
        return False
    weights = [weight for layer in layers for weight in layer.parameters()]
    kinds = {(type(weight), type(weight.data), weight.dtype, weight.device, weight.shape[1:]) for weight in weights}
    biased = len(weights) == 2 * len(layers)
    return (
        all(kind[:2] == (nn.Parameter, Tensor) and kind[2].is_floating_point for kind in kinds)
        and len(kinds) == 1 + biased
        and len({id(weight) for weight in weights}) == len(layers) * (1 + biased)
    )


@torch.no_grad()
def _side_by_side(weights: list[Tensor]) -> Tensor:
    """One tensor of which the weights are views from now on, if they are not yet."""
    first, sizes = weights[0].data, [len(weight) for weight in weights]
    ends = [weight.data_ptr() + weight.nbytes for weight in weights]
    if (
        all(weight.is_contiguous() for weight in weights)
        and len({weight.untyped_storage().data_ptr() for weight in weights}) == 1
        and [weight.data_ptr() for weight in weights[1:]] == ends[:-1]
    ):
        return first.as_strided((sum(sizes), *first.shape[1:]), first.stride())
    whole = torch.cat([weight.data for weight in weights])
    for weight, part in zip(weights, whole.split(sizes)):
        weight.data = part
    if whole.is_cuda:
        torch.cuda.empty_cache()  # the old ones are too small for what comes, and would be held beside it
    return whole
